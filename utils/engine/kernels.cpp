// The engine's kernels for a CPU. Each does in one pass over memory what the readable path in
// llama.py and paged_attention.py does in several: same names, same formulas.
//
// All work on float32 and bfloat16, and compute in float32. The compiler turns the loops marked
// `omp simd`, and the type `vec`, into the vector instructions of the processor it runs on.
// Shapes: T tokens, H query heads, H_kv key/value heads, D head_dim, I intermediate_size.

#include <torch/library.h>

#include "kernels_attention.h"
#include "kernels_vec.h"

// x / rms(x) * weight, row by row.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor in = x.contiguous(), out = at::empty_like(in);
  const int64_t size = x.size(-1), rows = x.numel() / size;
  dispatch(x, [&](auto number) {
    using T = decltype(number);
    const T *from = pointer<T>(in), *scale = pointer<T>(weight);
    T* to = pointer<T>(out);
#pragma omp parallel for if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
      const T* numbers = from + row * size;
      float squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < size; i++) squares += float(numbers[i]) * float(numbers[i]);
      const float shrink = 1 / std::sqrt(squares / size + float(eps));
#pragma omp simd
      for (int64_t i = 0; i < size; i++)
        to[row * size + i] = float(T(float(numbers[i]) * shrink)) * float(scale[i]);
    }
  });
  return out;
}

// silu(gate) * up: [T, 2 * I] -> [T, I].
Tensor silu_and_mul(const Tensor& gate_up) {
  const Tensor in = gate_up.contiguous();
  const int64_t rows = in.size(0), size = in.size(1) / 2;
  const Tensor out = at::empty({rows, size}, in.options());
  dispatch(in, [&](auto number) {
    using T = decltype(number);
    const T* from = pointer<T>(in);
    T* to = pointer<T>(out);
#pragma omp parallel for if (rows > 1)
    for (int64_t row = 0; row < rows; row++) {
      const T *gate = from + row * 2 * size, *up = gate + size;
#pragma omp simd
      for (int64_t i = 0; i < size; i++) {
        const float g = gate[i];
        to[row * size + i] = g / (1 + exponential(-g)) * float(up[i]);
      }
    }
  });
  return out;
}

// Turn the pairs (i, i + D/2) of each head by their token's angles. x: [T, heads, D], cos: [T, D].
Tensor apply_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t tokens = x.size(0), heads = x.size(1), D = x.size(2), half = D / 2;
  TORCH_CHECK(x.stride(1) == D && x.stride(2) == 1, "A token's heads must lie in a row.");
  const Tensor out = at::empty(x.sizes(), x.options());
  dispatch(x, [&](auto number) {
    using T = decltype(number);
    const T *from = pointer<T>(x), *cosines = pointer<T>(cos),
            *sines = pointer<T>(sin);
    T* to = pointer<T>(out);
#pragma omp parallel for if (tokens > 1)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t head = 0; head < heads; head++) {
        const T *first = from + t * x.stride(0) + head * D, *second = first + half;
        T* turned = to + (t * heads + head) * D;
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
          const float c = cosines[t * D + i], s = sines[t * D + i];
          turned[i] = float(first[i]) * c - float(second[i]) * s;
          turned[i + half] = float(second[i]) * c + float(first[i]) * s;
        }
      }
  });
  return out;
}

TORCH_LIBRARY(llm_course, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", &rms_norm);
  m.def("silu_and_mul(Tensor gate_up) -> Tensor", &silu_and_mul);
  m.def("apply_rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor", &apply_rotary);
  m.def("reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor slot_mapping) -> ()", &reshape_and_cache);
  m.def("paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, "
        "Tensor query_start_loc, Tensor seq_lens, Tensor block_table, float scale) -> Tensor",
        &paged_attention);
}
