// The KV cache in blocks: what writes to it, and attention over all requests of a flat batch.
// T tokens, B requests, H query heads, H_kv key/value heads, D head_dim, G = H / H_kv.
#pragma once

#include "attention_amx.h"
#include "given.h"
#include "tiles.h"

// Put the new keys and values [T, H_kv, D] into their slots of the cache.
void reshape_and_cache(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                       const Tensor& value_cache, const Tensor& slot_mapping) {
  expect_heads(key, "key", {ANY, ANY, ANY});
  expect_heads(value, "value", key.sizes());
  expect(key_cache, "key_cache", {ANY, ANY, key.size(1), key.size(2)}, key.scalar_type());
  expect(value_cache, "value_cache", key_cache.sizes(), key.scalar_type());
  TORCH_CHECK(value.scalar_type() == key.scalar_type(), "key and value have different dtypes.");
  expect_slots(slot_mapping, key.size(0), key_cache.size(0) * key_cache.size(1));
  const int64_t size = key.size(1) * key.size(2);
  const int64_t* slots = pointer<int64_t>(slot_mapping);
  dispatch(key, [&](auto number) {
    using T = decltype(number);
    for (int64_t t = 0; t < key.size(0); t++) {
      std::copy_n(pointer<T>(key) + t * key.stride(0), size,
                  pointer<T>(key_cache) + slots[t] * size);
      std::copy_n(pointer<T>(value) + t * value.stride(0), size,
                  pointer<T>(value_cache) + slots[t] * size);
    }
  });
}

// out [D] = what the parts of a row's keys come to together.
template <typename T>
inline void merge(T* out, const std::vector<const Partial*>& parts, int64_t D, float scale) {
  float largest = -INFINITY, total = 0, weighted[128] = {};
  for (const Partial* part : parts) largest = std::max(largest, part->largest);
  for (const Partial* part : parts) {
    const float share = exponential((part->largest - largest) * scale);
    total += part->total * share;
#pragma omp simd
    for (int64_t d = 0; d < D; d++) weighted[d] += part->weighted[d] * share;
  }
  for (int64_t d = 0; d < D; d++) out[d] = weighted[d] / total;
}

// query [T, H, D]; caches [blocks, block_size, H_kv, D]; of the B requests: query_start_loc
// [B + 1], seq_lens [B], block_table [B, most blocks]. Returns [T, H, D].
Tensor attention_over_blocks(const Tensor& query, const Tensor& key_cache,
                             const Tensor& value_cache, const Tensor& query_start_loc,
                             const Tensor& seq_lens, const Tensor& block_table, double scale) {
  const int64_t T = query.size(0), H = query.size(1), D = query.size(2), B = seq_lens.size(0);
  const int64_t H_kv = key_cache.size(2), G = H / H_kv, block_size = key_cache.size(1);
  const Tensor out = at::empty(query.sizes(), query.options());
  bool amx = false;
#ifdef HAVE_AMX
  amx = query.scalar_type() == at::kBFloat16 && (D == 64 || D == 128) && amx_allowed();
#endif
  const int64_t* start = pointer<int64_t>(query_start_loc);
  const Requests requests{start, pointer<int64_t>(seq_lens), pointer<int64_t>(block_table),
                          T, B, block_table.size(1), block_size, H_kv, G};
  // With AMX tiles of at most 64 rows: no more were measured there.
  const Work work(requests, amx ? LANES : TOGETHER, amx ? 4 : ROWS / TOGETHER);

  dispatch(query, [&](auto number) {
    using N = decltype(number);
    auto kernel = D <= 64 ? attend<N, 64> : attend<N, 128>;
#ifdef HAVE_AMX
    if constexpr (std::is_same_v<N, bfloat16>)
      if (amx) kernel = D == 64 ? attend_amx<64> : attend_amx<128>;
#endif
    const Tensors<N> tensors{pointer<N>(out), pointer<N>(query), query.stride(0),
                             pointer<N>(key_cache), pointer<N>(value_cache), block_size, G, H_kv,
                             D, float(scale)};
    for (const std::vector<Tile>& tiles : {std::cref(work.of_prefix), std::cref(work.of_requests)})
#pragma omp parallel for schedule(guided) if (tiles.size() > 1)
      for (size_t i = 0; i < tiles.size(); i++) kernel(tiles[i], tensors);
    if (!work.merged) return;
    std::vector<const Partial*> parts;
    for (int64_t i = 0; i < B; i++)
      for (int64_t row = start[i] * G; row < start[i + 1] * G; row++)
        for (int64_t kv_head = 0; kv_head < H_kv; kv_head++) {
          parts.clear();
          for (int64_t j = 0; j < work.pieces(i); j++)
            parts.push_back(work.partials_of(j, kv_head) + row);
          merge(tensors.out + (row / G * H + kv_head * G + row % G) * D, parts, D, tensors.scale);
        }
  });
  return out;
}

// The same, for arguments from anywhere.
Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& query_start_loc, const Tensor& seq_lens,
                       const Tensor& block_table, double scale) {
  expect_heads(query, "query", {ANY, ANY, ANY});
  const int64_t H = query.size(1), D = query.size(2);
  TORCH_CHECK(0 < D && D <= 128, "The kernel takes heads of at most 128 numbers, not ", D, ".");
  expect(key_cache, "key_cache", {ANY, ANY, ANY, D}, query.scalar_type());
  expect(value_cache, "value_cache", key_cache.sizes(), query.scalar_type());
  const int64_t block_size = key_cache.size(1), H_kv = key_cache.size(2);
  TORCH_CHECK(block_size > 0 && H_kv > 0 && H % H_kv == 0, "key_cache has shape ",
              key_cache.sizes(), ", whose heads cannot be shared by the ", H, " of query.");
  expect_batch(query.size(0), key_cache.size(0), block_size, query_start_loc, seq_lens,
               block_table);
  return attention_over_blocks(query, key_cache, value_cache, query_start_loc, seq_lens,
                               block_table, scale);
}
