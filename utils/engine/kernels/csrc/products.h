// Products with a weight. They are faster here than oneDNN's, except in bfloat16 where the processor
// multiplies that itself (AMX, AVX512-BF16).
// T rows, K inputs, N outputs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <omp.h>

#include "rows.h"

constexpr bool MANY_REGISTERS = LANES == 16;             // 32 of them with AVX-512, 16 with AVX2
constexpr int64_t WIDE = MANY_REGISTERS ? 4 : 2;         // vectors
constexpr int64_t STRIP = WIDE * LANES;                  // outputs whose weights lie together
constexpr int64_t AT_ONCE = 6;                           // rows: their sums fill the registers
constexpr int64_t DEPTH = MANY_REGISTERS ? 96 : 192;     // inputs: their weights fit into L1,
constexpr int NEAR = MANY_REGISTERS ? 2 : 3;             // where 12 kB leave room for the next 12
constexpr int64_t IN_CACHE = 96;                         // rows that fit into L2

// weight [N, K] -> [N / STRIP, K, STRIP]: in the order in which it is read. In bfloat16 outputs that
// are LANES apart lie side by side, so that 32 bits hold one of each of two vectors.
inline Tensor pack_weight(const Tensor& weight) {
  expect_like(weight, "weight", {ANY, ANY}, weight.scalar_type());
  const int64_t N = weight.size(0), K = weight.size(1);
  TORCH_CHECK(N % STRIP == 0, "weight has ", N, " rows; expected a multiple of ", STRIP, ".");
  const Tensor parts = weight.view({N / STRIP, WIDE / 2, 2, LANES, K});
  const bool pairs = weight.scalar_type() == at::kBFloat16;
  const auto ordered = pairs ? parts.permute({0, 4, 1, 3, 2}) : parts.permute({0, 4, 1, 2, 3});
  return ordered.reshape({N / STRIP, K, STRIP}).contiguous();
}

inline Tensor unpack_weight(const Tensor& packed) {
  expect(packed, "packed", {ANY, ANY, STRIP}, packed.scalar_type());
  const bool pairs = packed.scalar_type() == at::kBFloat16;
  const Tensor ordered = pairs ? packed.unflatten(2, {WIDE / 2, LANES, 2}).permute({0, 2, 4, 3, 1})
                               : packed.unflatten(2, {WIDE / 2, 2, LANES}).permute({0, 2, 3, 4, 1});
  return ordered.reshape({-1, packed.size(1)});
}

// A row of a packed strip, in float32.
inline void widen_row(vec (&to)[WIDE], const float* from) {
  for (int64_t i = 0; i < WIDE; i++) to[i] = load(from + i * LANES);
}
inline void widen_row(vec (&to)[WIDE], const bfloat16* from) {
  for (int64_t i = 0; i < WIDE; i += 2) {
    uint32s pairs;
    std::memcpy(&pairs, from + i * LANES, sizeof(pairs));
    to[i] = (vec)(pairs << 16), to[i + 1] = (vec)(pairs & 0xffff0000);
  }
}

// to [R, STRIP] += x [R, depth], a row every K numbers, times weights [depth, STRIP]. Between the
// multiplications memory is asked for what lies at `ahead`, `pace` bytes further each time: little by
// little, because the processor waits for few pieces at once, and then does nothing else.
template <int64_t R, typename W>
inline void add_products(float* to, const float* x, int64_t K, const W* weights, int64_t depth,
                         const char* ahead, int64_t pace) {
  vec sum[R][WIDE];
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < WIDE; i++) sum[r][i] = load(to + r * STRIP + i * LANES);
  for (int64_t k = 0; k < depth; k++, weights += STRIP) {
    __builtin_prefetch(ahead, 0, NEAR);
    ahead += pace;
    vec w[WIDE];
    widen_row(w, weights);
    for (int64_t r = 0; r < R; r++)
      for (int64_t i = 0; i < WIDE; i++) sum[r][i] += x[r * K + k] * w[i];
  }
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < WIDE; i++) store(to + r * STRIP + i * LANES, sum[r][i]);
}

template <int64_t R = AT_ONCE, typename W>
inline void add_products(int64_t rows, float* to, const float* x, int64_t K, const W* weights,
                         int64_t depth, const char* ahead, int64_t pace) {
  if constexpr (R > 1)
    if (rows < R) return add_products<R - 1>(rows, to, x, K, weights, depth, ahead, pace);
  add_products<R>(to, x, K, weights, depth, ahead, pace);
}

// to [rows, STRIP] = x [rows, K] times a strip of weights. Each part of it is fetched once, and then
// meets all rows, in groups of much the same size; meanwhile the next part is asked for.
template <typename W>
inline void multiply_strip(float* to, const float* x, int64_t rows, int64_t K, const W* strip) {
  alignas(64) float widened[DEPTH * STRIP];
  const int64_t groups = (rows + AT_ONCE - 1) / AT_ONCE;
  std::fill_n(to, rows * STRIP, 0.0f);
  for (int64_t k = 0; k < K; k += DEPTH) {
    const int64_t depth = std::min(DEPTH, K - k), size = depth * STRIP;
    const W* part = strip + k * STRIP;
    const int64_t bytes = size * sizeof(W);
    const auto multiply = [&](const auto* weights) {
      for (int64_t i = 0; i < groups; i++) {
        const int64_t row = rows * i / groups, end = rows * (i + 1) / groups;
        const char* ahead = (const char*)part + (groups > 1 ? (groups + i) * bytes / groups : 2048);
        add_products(end - row, to + row * STRIP, x + row * K + k, K, weights, depth, ahead,
                     bytes / groups / depth);
      }
    };
    if (std::is_same_v<W, float> || groups <= 3) {
      multiply(part);
    } else {
      for (int64_t j = 0; j < size; j += STRIP) {
        vec row[WIDE];
        widen_row(row, part + j);
        for (int64_t i = 0; i < WIDE; i++) store(widened + j + i * LANES, row[i]);
      }
      multiply(widened);
    }
  }
}

// x [T, K] times a weight from `pack_weight`, summed in float32: [T, N].
inline Tensor multiply_packed(const Tensor& x, const Tensor& packed) {
  expect(x, "x", {ANY, packed.size(1)}, packed.scalar_type());
  const int64_t rows = x.size(0), K = x.size(1), strips = packed.size(0), N = strips * STRIP;
  const Tensor out = at::empty({rows, N}, x.options());
  const bool widen = x.scalar_type() != at::kFloat;
  const Tensor in = widen ? at::empty(x.sizes(), x.options().dtype(at::kFloat)) : x;
  const int64_t blocks = (rows + IN_CACHE - 1) / IN_CACHE;
  dispatch(x, [&](auto number) {
    using W = decltype(number);
    const W *given = pointer<W>(x), *weights = pointer<W>(packed);
    float* wide_x = pointer<float>(in);
    W* to = pointer<W>(out);
#pragma omp parallel if (rows * K * N >= MANY)
    {
      const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
      if (widen) {
#pragma omp for
        for (int64_t row = 0; row < rows; row++)
#pragma omp simd
          for (int64_t k = row * K; k < (row + 1) * K; k++) wide_x[k] = given[k];
      }
      alignas(64) float sums[IN_CACHE * STRIP];
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = rows * block / blocks, end = rows * (block + 1) / blocks;
        for (int64_t i = strips * thread / threads; i < strips * (thread + 1) / threads; i++) {
          multiply_strip(sums, wide_x + first * K, end - first, K, weights + i * K * STRIP);
          for (int64_t row = first; row < end; row++)
#pragma omp simd
            for (int64_t j = 0; j < STRIP; j++)
              to[row * N + i * STRIP + j] = sums[(row - first) * STRIP + j];
        }
      }
    }
  });
  return out;
}

// A product with a weight that `PackedLinear` has packed: here, or by PyTorch's oneDNN.
inline Tensor product(const Tensor& x, const Tensor& packed) {
  if (packed.dim() == 3) return multiply_packed(x.contiguous(), packed);
  using Signature = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                           std::string_view, c10::List<std::optional<at::Scalar>>,
                           std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  return op.call(x, packed, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

// Of a packed weight [N, K]: its N (-1: any), K and type.
inline int64_t outputs(const Tensor& packed) {
  return packed.dim() == 3 ? packed.size(0) * STRIP : packed.size(0);
}
inline void expect_packed(const Tensor& packed, const char* name, int64_t N, int64_t K,
                          at::ScalarType type) {
  if (packed.dim() != 3) return expect_like(packed, name, {N, K}, type);
  expect(packed, name, {ANY, K, STRIP}, type);
  TORCH_CHECK(N == ANY || N == outputs(packed), name, " has ", outputs(packed), " rows; expected ",
              N, ".");
}
