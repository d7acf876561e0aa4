// All decoder layers in one call. What lies between two matrix products is done in one pass over
// memory, and Python is not asked in between: with few tokens, it takes longer than the work.
#pragma once

#include "paged.h"
#include "products.h"

// x += more, and the norm of that. Without `more`, the norm of x.
template <typename T>
Tensor add_rms_norm(const Tensor& x, const Tensor& more, const Tensor& weight, double eps) {
  const int64_t rows = x.size(0), size = x.size(1);
  const Tensor out = at::empty_like(x);
  const T *added = more.defined() ? pointer<T>(more) : nullptr, *scale = pointer<T>(weight);
#pragma omp parallel for if (rows * size >= MANY)
  for (int64_t row = 0; row < rows; row++) {
    T *sum = pointer<T>(x) + row * size, *to = pointer<T>(out) + row * size;
    if (added)
#pragma omp simd
      for (int64_t i = 0; i < size; i++) sum[i] = float(sum[i]) + float(added[row * size + i]);
    normalize(to, sum, scale, size, eps);
  }
  return out;
}

// Turn queries and keys of qkv [T, H + 2 * H_kv, D] in place; put keys and values into the cache.
template <typename T>
void rotate_and_cache(const Tensor& qkv, const Tensor& cos, const Tensor& sin, T* key_cache,
                      T* value_cache, const Tensor& slot_mapping, int64_t H, int64_t H_kv) {
  const int64_t tokens = qkv.size(0), D = cos.size(1), width = H_kv * D;
#pragma omp parallel for if (qkv.numel() >= MANY)
  for (int64_t t = 0; t < tokens; t++) {
    T *query = pointer<T>(qkv) + t * (H + 2 * H_kv) * D, *key = query + H * D;
    for (T* head = query; head < key + width; head += D)
      rotate(head, head, pointer<T>(cos) + t * D, pointer<T>(sin) + t * D, D);
    const int64_t slot = pointer<int64_t>(slot_mapping)[t];
    std::copy_n(key, width, key_cache + slot * width);
    std::copy_n(key + width, width, value_cache + slot * width);
  }
}

// One layer's weights, as `decoder_layers` says. How many query heads there are, they say.
inline void expect_layer(const Tensor* layer, int64_t hidden, int64_t H_kv, int64_t D,
                         at::ScalarType type) {
  expect(layer[0], "input_layernorm", {hidden}, type);
  expect_packed(layer[1], "qkv_proj", ANY, hidden, type);
  const int64_t query = outputs(layer[1]) - 2 * H_kv * D, middle = outputs(layer[4]) / 2;
  TORCH_CHECK(query > 0 && query % (H_kv * D) == 0, "qkv_proj has ", outputs(layer[1]),
              " rows, which are no heads of ", D, " that ", H_kv, " key/value heads can serve.");
  expect_packed(layer[2], "o_proj", hidden, query, type);
  expect(layer[3], "post_attention_layernorm", {hidden}, type);
  expect_packed(layer[4], "gate_up_proj", ANY, hidden, type);
  TORCH_CHECK(outputs(layer[4]) % 2 == 0, "gate_up_proj has ", outputs(layer[4]), " rows.");
  expect_packed(layer[5], "down_proj", hidden, middle, type);
}

// x [T, hidden] through all layers, whose caches are [layers, blocks, block_size, H_kv, D]. Of each
// layer `weights` holds the first norm, qkv, o, the second norm, gate_up, down. Returns the
// hidden states before the last norm. The other arguments are those of the single kernels. What is
// wrong with them is said once, not in each layer.
Tensor decoder_layers(const Tensor& hidden, const Tensor& cos, const Tensor& sin,
                      at::TensorList weights, const Tensor& key_caches, const Tensor& value_caches,
                      const Tensor& slot_mapping, const Tensor& query_start_loc,
                      const Tensor& seq_lens, const Tensor& block_table, double scale, double eps) {
  expect(hidden, "hidden", {ANY, ANY}, hidden.scalar_type());
  expect(key_caches, "key_caches", {ANY, ANY, ANY, ANY, ANY}, hidden.scalar_type());
  expect(value_caches, "value_caches", key_caches.sizes(), hidden.scalar_type());
  const Tensor x = hidden.clone();
  const int64_t tokens = x.size(0), D = key_caches.size(4), H_kv = key_caches.size(3);
  const int64_t num_blocks = key_caches.size(1), block_size = key_caches.size(2);
  TORCH_CHECK(0 < D && D <= 128, "The kernel takes heads of at most 128 numbers, not ", D, ".");
  TORCH_CHECK(H_kv > 0 && D % 2 == 0, "key_caches has shape ", key_caches.sizes(),
              "; expected heads, made of pairs.");
  TORCH_CHECK(int64_t(weights.size()) == 6 * key_caches.size(0), weights.size(), " weights for ",
              key_caches.size(0), " layers; expected 6 for each.");
  for (size_t i = 0; i < weights.size(); i += 6)
    expect_layer(&weights[i], x.size(1), H_kv, D, hidden.scalar_type());
  expect(cos, "cos", {tokens, D}, hidden.scalar_type());
  expect(sin, "sin", {tokens, D}, hidden.scalar_type());
  expect_slots(slot_mapping, tokens, num_blocks * block_size);
  expect_batch(tokens, num_blocks, block_size, query_start_loc, seq_lens, block_table);
  const std::vector<Tensor> keys = key_caches.unbind(), values = value_caches.unbind();
  dispatch(x, [&](auto number) {
    using T = decltype(number);
    Tensor more;
    for (size_t i = 0; i < keys.size(); i++) {
      const Tensor* layer = &weights[6 * i];
      const Tensor qkv =
          product(add_rms_norm<T>(x, more, layer[0], eps), layer[1]).view({tokens, -1, D});
      const int64_t H = qkv.size(1) - 2 * H_kv;
      rotate_and_cache(qkv, cos, sin, pointer<T>(keys[i]), pointer<T>(values[i]), slot_mapping, H,
                       H_kv);
      const Tensor attended = attention_over_blocks(qkv.narrow(1, 0, H), keys[i], values[i],
                                                    query_start_loc, seq_lens, block_table, scale);
      more = product(attended.view({tokens, -1}), layer[2]);
      const Tensor gate_up = product(add_rms_norm<T>(x, more, layer[3], eps), layer[4]);
      more = product(silu_and_mul(gate_up), layer[5]);
    }
    x.add_(more);
  });
  return x;
}
