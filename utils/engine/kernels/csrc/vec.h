// What the kernels are made of: bfloat16, 16 numbers at a time, and e^x.
#pragma once

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <cstring>

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

// 16 numbers at a time: one AVX-512 register, or several smaller ones.
constexpr int64_t LANES = 16;
using vec = float __attribute__((vector_size(4 * LANES)));

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

#define PICK(i, ...) __builtin_shufflevector(v[2 * i], v[2 * i + 1], __VA_ARGS__)

// The sums of 16 vectors: the first step adds halves and keeps two vectors' halves in one, the next
// adds halves of these, until each vector is a single number. 15 additions, where one vector after
// the other would take 64.
inline vec sums(vec (&v)[LANES]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++)
    v[i] = PICK(i, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           PICK(i, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++)
    v[i] = PICK(i, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           PICK(i, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++)
    v[i] = PICK(i, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           PICK(i, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  return PICK(0, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         PICK(0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// e^x without a branch: x = n ln 2 + r, a polynomial for e^r, and n added to the exponent bits.
// Relative error below 1e-6. What is very negative gives almost 0.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;  // what float32 has exponents for
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  const float e = ((((((1.0f / 720) * r + 1.0f / 120) * r + 1.0f / 24) * r + 1.0f / 6) * r
                    + 0.5f) * r + 1.0f) * r + 1.0f;
  return std::bit_cast<float>(std::bit_cast<int>(e) + (static_cast<int>(n) << 23));
}

inline vec exponential(vec x) {
  vec e;
#pragma omp simd
  for (int64_t i = 0; i < LANES; i++) e[i] = exponential(x[i]);
  return e;
}

// Calls `kernel` with a number of the tensor's dtype, whose type it takes.
template <typename Kernel>
void dispatch(const Tensor& tensor, const Kernel& kernel) {
  if (tensor.scalar_type() == at::kFloat) return kernel(float());
  TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "The kernels take float32 or bfloat16, not ",
              tensor.dtype(), ".");
  kernel(bfloat16());
}
