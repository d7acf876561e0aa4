// The engine's kernels for a CPU. Each does in one pass over memory what the readable path (llama.py,
// attention/) does in several, by the same formulas; what is one function there has its name here.
//
// All work on float32 and bfloat16, and compute in float32. The compiler turns the loops marked
// `omp simd`, and the type `vec`, into the vector instructions of the processor it runs on.
// Shapes: T tokens, H query heads, H_kv key/value heads, D head_dim. As a type, T is the numbers'.

#include <torch/library.h>

#include "layers.h"

// x / rms(x) * weight, row by row.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  expect_like(x, "x", x.sizes(), x.scalar_type());
  TORCH_CHECK(x.dim() > 0 && x.numel() > 0, "x has shape ", x.sizes(), "; expected numbers in rows.");
  const Tensor in = x.contiguous(), out = at::empty_like(in);
  const int64_t size = x.size(-1), rows = x.numel() / size;
  expect(weight, "weight", {size}, x.scalar_type());
  dispatch(x, [&](auto number) {
    using T = decltype(number);
#pragma omp parallel for if (rows * size >= MANY)
    for (int64_t row = 0; row < rows; row++)
      normalize(pointer<T>(out) + row * size, pointer<T>(in) + row * size, pointer<T>(weight), size,
                eps);
  });
  return out;
}

// Turn the pairs (i, i + D/2) of each head by their token's angles. x: [T, heads, D], cos: [T, D].
Tensor apply_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  expect_heads(x, "x", {ANY, ANY, ANY});
  const int64_t tokens = x.size(0), heads = x.size(1), D = x.size(2);
  TORCH_CHECK(D % 2 == 0, "A head of ", D, " numbers is not made of pairs.");
  expect(cos, "cos", {tokens, D}, x.scalar_type());
  expect(sin, "sin", {tokens, D}, x.scalar_type());
  const Tensor out = at::empty(x.sizes(), x.options());
  dispatch(x, [&](auto number) {
    using T = decltype(number);
#pragma omp parallel for if (x.numel() >= MANY)
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t head = 0; head < heads; head++)
        rotate(pointer<T>(out) + (t * heads + head) * D,
               pointer<T>(x) + t * x.stride(0) + head * D, pointer<T>(cos) + t * D,
               pointer<T>(sin) + t * D, D);
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
  m.def("pack_weight(Tensor weight) -> Tensor", &pack_weight);
  m.def("unpack_weight(Tensor packed) -> Tensor", &unpack_weight);
  m.def("product(Tensor x, Tensor packed) -> Tensor", &product);
  m.def("decoder_layers(Tensor hidden, Tensor cos, Tensor sin, Tensor[] weights, "
        "Tensor(a!) key_caches, Tensor(b!) value_caches, Tensor slot_mapping, "
        "Tensor query_start_loc, Tensor seq_lens, Tensor block_table, float scale, float eps) "
        "-> Tensor", &decoder_layers);
}
