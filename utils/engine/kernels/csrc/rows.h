// What is done with each row or head by itself: norm, SwiGLU, rotation.
// T tokens, I intermediate_size, D head_dim.
#pragma once

#include "given.h"

// With fewer numbers than this, waking a second thread takes longer than the work.
constexpr int64_t MANY = 1 << 15;

// to = from / rms(from) * scale
template <typename T>
inline void normalize(T* to, const T* from, const T* scale, int64_t size, double eps) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < size; i++) squares += float(from[i]) * float(from[i]);
  const float shrink = 1 / std::sqrt(squares / size + float(eps));
#pragma omp simd
  for (int64_t i = 0; i < size; i++) to[i] = float(T(float(from[i]) * shrink)) * float(scale[i]);
}

// Turn the pairs (i, i + D/2) of one head; `to` may be `from`.
template <typename T>
inline void rotate(T* to, const T* from, const T* cosines, const T* sines, int64_t D) {
  const int64_t half = D / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    const float first = from[i], second = from[i + half], c = cosines[i], s = sines[i];
    to[i] = first * c - second * s;
    to[i + half] = second * c + first * s;
  }
}

// silu(gate) * up: [T, 2 * I] -> [T, I].
inline Tensor silu_and_mul(const Tensor& gate_up) {
  expect_like(gate_up, "gate_up", {ANY, ANY}, gate_up.scalar_type());
  TORCH_CHECK(gate_up.size(1) % 2 == 0, "gate_up has ", gate_up.size(1), " columns: not two halves.");
  const Tensor in = gate_up.contiguous();
  const int64_t rows = in.size(0), size = in.size(1) / 2;
  const Tensor out = at::empty({rows, size}, in.options());
  dispatch(in, [&](auto number) {
    using T = decltype(number);
#pragma omp parallel for if (rows * size >= MANY)
    for (int64_t row = 0; row < rows; row++) {
      const T *gate = pointer<T>(in) + row * 2 * size, *up = gate + size;
      T* to = pointer<T>(out) + row * size;
#pragma omp simd
      for (int64_t i = 0; i < size; i++) {
        const float g = gate[i];
        to[i] = g / (1 + exponential(-g)) * float(up[i]);
      }
    }
  });
  return out;
}
