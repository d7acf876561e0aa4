// The KV cache in blocks: what writes to it, and attention over all requests of a flat batch.
// T tokens, B requests, H query heads, H_kv key/value heads, D head_dim, G = H / H_kv.
#pragma once

#include <omp.h>

#include <memory>
#include <vector>

#include "attention_amx.h"
#include "given.h"

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

// How many tokens at their beginning all requests have in the same blocks, and see whole.
inline int64_t common_prefix(const Tensor& query_start_loc, const Tensor& seq_lens,
                             const Tensor& block_table, int64_t block_size) {
  const int64_t *start = pointer<int64_t>(query_start_loc), *length = pointer<int64_t>(seq_lens);
  const int64_t *table = pointer<int64_t>(block_table), blocks = block_table.size(1);
  int64_t common = blocks;
  for (int64_t i = 0; i < seq_lens.size(0); i++) {
    common = std::min(common, (length[i] - (start[i + 1] - start[i])) / block_size);
    const int64_t* own = table + i * blocks;
    common = std::mismatch(own, own + common, table).first - own;
  }
  return common * block_size;
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

// Keys that are fetched for one head while the other heads' keys beside them are still in a cache.
constexpr int64_t NEARBY = 512;

// query [T, H, D]; caches [blocks, block_size, H_kv, D]; of the B requests: query_start_loc
// [B + 1], seq_lens [B], block_table [B, most blocks]. Returns [T, H, D].
//
// Where requests share a long prefix, its keys and values are fetched once for all of them, and
// each goes on from there with its own (cascade attention; Ye et al. 2024, "Cascade Inference").
// Where there are too few tiles for all threads, the keys are cut into pieces, whose results are
// merged (Dao et al. 2023, "Flash-Decoding").
Tensor attention_over_blocks(const Tensor& query, const Tensor& key_cache,
                             const Tensor& value_cache, const Tensor& query_start_loc,
                             const Tensor& seq_lens, const Tensor& block_table, double scale) {
  const int64_t T = query.size(0), H = query.size(1), D = query.size(2), B = seq_lens.size(0);
  const int64_t H_kv = key_cache.size(2), G = H / H_kv, block_size = key_cache.size(1);
  const Tensor out = at::empty(query.sizes(), query.options());
  const int64_t *start = pointer<int64_t>(query_start_loc), *length = pointer<int64_t>(seq_lens);
  const int64_t* tables = pointer<int64_t>(block_table);

  bool amx = false;
#ifdef HAVE_AMX
  amx = query.scalar_type() == at::kBFloat16 && (D == 64 || D == 128) && amx_allowed();
#endif
  // With AMX half as many: what was measured there.
  const int64_t most_rows = amx ? ROWS / 2 : ROWS;
  const auto tiles_of = [&](int64_t tokens) { return (tokens * G + most_rows - 1) / most_rows; };

  // Not where each request has rows enough to fill tiles: fetching is little of their work.
  int64_t prefix = 0;
  if (B >= 4 && T * G < B * most_rows)
    prefix = common_prefix(query_start_loc, seq_lens, block_table, block_size);
  if (prefix < KEYS) prefix = 0;
  const auto tokens_of = [&](int64_t i) { return start[i + 1] - start[i]; };
  int64_t tiles = 0, split = 1, most_pieces = 1;
  for (int64_t i = 0; i < B; i++) tiles += H_kv * tiles_of(tokens_of(i));
  if (!prefix && tiles) split = (2 * omp_get_max_threads() - 1) / tiles + 1;
  // Keys of a piece: whole steps of `attend`. Every row sees the first key of the last piece.
  const auto piece = [&](int64_t i) {
    const int64_t step = split * KEYS, size = std::max(2 * KEYS, (length[i] + step - 1) / step * KEYS);
    return T == B && !prefix ? std::min(size, NEARBY) : size;
  };
  const auto pieces_of = [&](int64_t i) { return (length[i] - tokens_of(i)) / piece(i) + 1; };
  for (int64_t i = 0; i < B; i++) most_pieces = std::max(most_pieces, pieces_of(i));

  const bool merged = most_pieces > 1;
  const auto partials = std::make_unique_for_overwrite<Partial[]>(
      prefix || merged ? most_pieces * H_kv * T * G : 0);
  const auto partials_of = [&](int64_t piece, int64_t kv_head) {
    return &partials[(piece * H_kv + kv_head) * T * G];
  };
  std::vector<Tile> of_prefix, of_requests;
  const auto cut = [&](std::vector<Tile>& to, Tile tile, int64_t tokens, int64_t piece = 0) {
    for (tile.kv_head = 0; tile.kv_head < H_kv; tile.kv_head++) {
      tile.partials = prefix || merged ? partials_of(piece, tile.kv_head) : nullptr;
      for (int64_t j = 0, n = tiles_of(tokens); j < n; j++) {
        tile.first_row = tokens * G * j / n;
        tile.rows = tokens * G * (j + 1) / n - tile.first_row;
        to.push_back(tile);
      }
    }
  };
  if (prefix)
    cut(of_prefix, {.block_table = tables, .first_position = prefix, .num_keys = prefix,
                    .is_partial = true}, T);
  for (int64_t i = 0; i < B; i++)
    for (int64_t j = 0, last = pieces_of(i) - 1; j <= last; j++)
      cut(of_requests, {.block_table = tables + i * block_table.size(1), .first_token = start[i],
                        .first_position = length[i] - tokens_of(i),
                        .first_key = merged ? j * piece(i) : prefix,
                        .num_keys = j < last ? (j + 1) * piece(i) : length[i],
                        .is_partial = merged}, tokens_of(i), j);

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
    for (const std::vector<Tile>& these : {std::cref(of_prefix), std::cref(of_requests)})
#pragma omp parallel for schedule(guided) if (these.size() > 1)
      for (size_t i = 0; i < these.size(); i++) kernel(these[i], tensors);
    if (!merged) return;
    std::vector<const Partial*> parts;
    for (int64_t i = 0; i < B; i++)
      for (int64_t row = start[i] * G; row < start[i + 1] * G; row++)
        for (int64_t kv_head = 0; kv_head < H_kv; kv_head++) {
          parts.clear();
          for (int64_t j = 0; j < pieces_of(i); j++) parts.push_back(partials_of(j, kv_head) + row);
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
