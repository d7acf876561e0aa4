// What the kernels are made of: bfloat16, vectors of numbers, and e^x.
#pragma once

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

using at::Tensor;

// The upper half of a float32. PyTorch's own type looks for NaN at each rounding, and no compiler
// makes vector instructions of that.
struct bfloat16 {
  uint16_t bits;
  bfloat16() = default;
  bfloat16(float x) { *this = x; }
  bfloat16& operator=(float x) {  // rounds to the nearest, in case of a tie to the even one
    const auto whole = std::bit_cast<uint32_t>(x);
    bits = (whole + 0x7fff + ((whole >> 16) & 1)) >> 16;
    return *this;
  }
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

template <typename T>
T* pointer(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// As many numbers as a register of the processor holds: 16 with AVX-512, 8 with AVX2. ARM takes two
// registers for them.
#ifdef __AVX512F__
constexpr int64_t LANES = 16;
#else
constexpr int64_t LANES = 8;
#endif
using vec = float __attribute__((vector_size(4 * LANES)));
using uint32s = uint32_t __attribute__((vector_size(4 * LANES)));
using Lanes = std::make_index_sequence<LANES>;

inline vec load(const float* from) {
  vec v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline void store(float* to, vec v) { std::memcpy(to, &v, sizeof(v)); }

// A head's numbers to float32, with zeros behind.
template <int64_t WIDTH, typename T>
inline void widen(float* to, const T* from, int64_t size) {
  if (size == WIDTH) {  // a number known to the compiler makes a better loop
#pragma omp simd
    for (int64_t i = 0; i < WIDTH; i++) to[i] = from[i];
  } else {
    for (int64_t i = 0; i < WIDTH; i++) to[i] = i < size ? float(from[i]) : 0;
  }
}

// Cut two vectors into groups of W numbers. `even` takes the groups 0, 2, ... of both, `odd` the
// others: a's stay where they are, or move down, and b's come between them.
template <size_t W, size_t... L>
inline vec even(vec a, vec b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, (L & W ? LANES + L - W : L)...);
}
template <size_t W, size_t... L>
inline vec odd(vec a, vec b, std::index_sequence<L...>) {
  return __builtin_shufflevector(a, b, (L & W ? LANES + L : L + W)...);
}

// The sums of LANES vectors, each vector's in its lane. A step adds halves and keeps those of two
// vectors in one, the next adds halves of these, until each vector is a single number: with 16
// lanes 15 additions, where one vector after the other would take 64.
template <size_t W = LANES / 2>
inline vec sums(vec (&v)[LANES]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < W; i++) v[i] = even<W>(v[i], v[i + W], Lanes()) + odd<W>(v[i], v[i + W], Lanes());
  if constexpr (W == 1) return v[0];
  else return sums<W / 2>(v);
}

// Rows become columns: first whole quarters of the matrix change places, then quarters of these.
template <size_t W = LANES / 2>
inline void transpose(vec (&v)[LANES]) {
#pragma GCC unroll 16
  for (size_t i = 0; i < LANES; i++) {
    if (i & W) continue;
    const vec a = v[i], b = v[i + W];
    v[i] = even<W>(a, b, Lanes()), v[i + W] = odd<W>(a, b, Lanes());
  }
  if constexpr (W > 1) transpose<W / 2>(v);
}

template <typename Number>
inline Number larger_of(Number a, Number b) { return a > b ? a : b; }
template <typename Number>
inline Number smaller_of(Number a, Number b) { return a < b ? a : b; }

// A vector's numbers changed places with those W away.
template <size_t W, size_t... L>
inline vec swapped(vec v, std::index_sequence<L...>) {
  return __builtin_shufflevector(v, v, (L ^ W)...);
}

// The sum of a vector's numbers, and the largest: halves meet until all lanes hold it.
template <size_t W = LANES / 2>
inline float sum_of(vec v) {
  v += swapped<W>(v, Lanes());
  if constexpr (W == 1) return v[0];
  else return sum_of<W / 2>(v);
}
template <size_t W = LANES / 2>
inline float largest_of(vec v) {
  v = larger_of(v, swapped<W>(v, Lanes()));
  if constexpr (W == 1) return v[0];
  else return largest_of<W / 2>(v);
}

// e^x without a branch, of one number or of each in a vector: x = n ln 2 + r, a polynomial for e^r,
// and n added to the exponent bits. Relative error below 1e-6. What is very negative gives almost 0.
template <typename Number, typename Bits>
inline Number exponential_of(Number x) {
  constexpr float ROUNDS = 12582912;  // added to a number, 1.5 * 2^23 leaves no bits for fractions
  const Number lowest = Number{} - 87, highest = Number{} + 88;  // what float32 has exponents for
  x = larger_of(lowest, smaller_of(highest, x));
  const Number shifted = x * 1.44269504f + ROUNDS;  // its lowest bits are n
  const Number n = shifted - ROUNDS;
  const Number r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const Number e = ((((((1.0f / 720) * r + 1.0f / 120) * r + 1.0f / 24) * r + 1.0f / 6) * r
                     + 0.5f) * r + 1.0f) * r + 1.0f;
  return std::bit_cast<Number>(std::bit_cast<Bits>(e) + (std::bit_cast<Bits>(shifted) << 23));
}

inline float exponential(float x) { return exponential_of<float, uint32_t>(x); }
inline vec exponential(vec x) {
  return exponential_of<vec, uint32s>(x);
}

// Calls `kernel` with a number of the tensor's dtype, whose type it takes.
template <typename Kernel>
void dispatch(const Tensor& tensor, const Kernel& kernel) {
  if (tensor.scalar_type() == at::kFloat) return kernel(float());
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "The kernels take float32 or bfloat16, not ",
              tensor.dtype(), ".");
  kernel(bfloat16());
}
