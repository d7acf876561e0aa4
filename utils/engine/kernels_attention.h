// Attention that follows the block table, and what writes the keys and values it reads.
// T tokens, H query heads, H_kv key/value heads, D head_dim, G = H / H_kv.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels_vec.h"

// Put the new keys and values [T, H_kv, D] into their slots of the cache.
void reshape_and_cache(const Tensor& key, const Tensor& value, const Tensor& key_cache,
                       const Tensor& value_cache, const Tensor& slot_mapping) {
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

// A row is a query of one head. The G heads that share a KV head give rows next to each other, so
// that keys and values, once fetched, serve all rows of a tile.
constexpr int64_t ROWS = 32;
constexpr int64_t KEYS = 64;  // fetched at a time

struct Tile {
  const int64_t* block_table;
  int64_t first_token;     // of the request, in the flat batch
  int64_t first_position;  // of that token, in the request
  int64_t kv_head, first_row, rows;
};

// Follow the block table, 64 keys at a time, with the online softmax of
// `paged_attention_reference`: for each row the largest score so far, the sum of exponentials
// relative to it, and the sum of values weighted by them. VECS vectors hold a head; D numbers of
// them are used, the rest is 0.
template <typename T, int64_t VECS>
void attend(const Tile& tile, T* out, const T* query, int64_t query_stride, const T* key_cache,
            const T* value_cache, int64_t block_size, int64_t G, int64_t H_kv, int64_t D,
            float scale) {
  constexpr int64_t WIDTH = VECS * LANES;
  alignas(64) float q[ROWS][WIDTH], weighted[ROWS][WIDTH], k[KEYS][WIDTH], v[KEYS][WIDTH];
  alignas(64) float score[KEYS];
  float largest[ROWS], total[ROWS];
  std::fill_n(weighted[0], tile.rows * WIDTH, 0.0f);
  std::fill_n(total, ROWS, 0.0f);
  std::fill_n(largest, ROWS, -INFINITY);
  const auto token = [&](int64_t row) { return (tile.first_row + row) / G; };
  const auto head = [&](int64_t row) { return tile.kv_head * G + (tile.first_row + row) % G; };

  for (int64_t row = 0; row < tile.rows; row++) {
    const T* from = query + (tile.first_token + token(row)) * query_stride + head(row) * D;
    widen<WIDTH>(q[row], from, D);
  }
  const int64_t last_block = tile.first_position / block_size;
  const int64_t num_keys = tile.first_position + token(tile.rows - 1) + 1;
  int64_t in_table = 0, in_block = 0;  // where the next key lies
  for (int64_t begin = 0; begin < num_keys; begin += KEYS) {
    const int64_t count = std::min(KEYS, num_keys - begin);
    for (int64_t j = 0; j < count; j++) {
      const int64_t slot = tile.block_table[in_table] * block_size + in_block;
      const int64_t at = (slot * H_kv + tile.kv_head) * D;
      widen<WIDTH>(k[j], key_cache + at, D);
      widen<WIDTH>(v[j], value_cache + at, D);
      // Ask for the next 64 now: they arrive while these are computed with.
      const int64_t next = tile.block_table[std::min(in_table + KEYS / block_size, last_block)];
      const int64_t there = ((next * block_size + in_block) * H_kv + tile.kv_head) * D;
      for (int64_t d = 0; d < WIDTH; d += 64 / sizeof(T)) {
        __builtin_prefetch(key_cache + there + d);
        __builtin_prefetch(value_cache + there + d);
      }
      if (++in_block == block_size) in_block = 0, in_table++;
    }
    for (int64_t j = count; j % LANES; j++) std::fill_n(v[j], WIDTH, 0.0f);  // no garbage
    for (int64_t row = 0; row < tile.rows; row++) {
      // Causal: the keys up to the row's own position.
      const int64_t seen = std::min(count, tile.first_position + token(row) + 1 - begin);
      if (seen <= 0) continue;
      const int64_t size = (seen + LANES - 1) / LANES * LANES;
      for (int64_t first = 0; first < size; first += LANES) {
        vec products[LANES] = {};
#pragma GCC unroll 16
        for (int64_t j = 0; j < LANES; j++)
          for (int64_t i = 0; i < VECS; i++)
            products[j] += load(&q[row][i * LANES]) * load(&k[first + j][i * LANES]);
        store(score + first, sums(products));
      }
      std::fill(score + seen, score + size, -INFINITY);

      float larger = largest[row], sum = 0;
#pragma omp simd reduction(max : larger)
      for (int64_t j = 0; j < size; j++) larger = std::max(larger, score[j]);
#pragma omp simd reduction(+ : sum)
      for (int64_t j = 0; j < size; j++)
        sum += score[j] = exponential((score[j] - larger) * scale);
      const float shrink = exponential((largest[row] - larger) * scale);
      total[row] = total[row] * shrink + sum;
      largest[row] = larger;

      vec values[2][VECS] = {};  // of even and of odd keys: two sums wait less for each other
      for (int64_t i = 0; i < VECS; i++) values[0][i] = load(&weighted[row][i * LANES]) * shrink;
      for (int64_t first = 0; first < size; first += LANES)
#pragma GCC unroll 16
        for (int64_t j = 0; j < LANES; j++)
          for (int64_t i = 0; i < VECS; i++)
            values[j % 2][i] += score[first + j] * load(&v[first + j][i * LANES]);
      for (int64_t i = 0; i < VECS; i++)
        store(&weighted[row][i * LANES], values[0][i] + values[1][i]);
    }
  }
  for (int64_t row = 0; row < tile.rows; row++) {
    T* to = out + ((tile.first_token + token(row)) * G * H_kv + head(row)) * D;
    for (int64_t d = 0; d < D; d++) to[d] = weighted[row][d] / total[row];
  }
}

// query [T, H, D]; caches [blocks, block_size, H_kv, D]; of the B requests: query_start_loc
// [B + 1], seq_lens [B], block_table [B, most blocks]. Returns [T, H, D].
Tensor paged_attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                       const Tensor& query_start_loc, const Tensor& seq_lens,
                       const Tensor& block_table, double scale) {
  const int64_t H = query.size(1), D = query.size(2), H_kv = key_cache.size(2), G = H / H_kv;
  TORCH_CHECK(query.stride(1) == D && query.stride(2) == 1, "A token's heads must lie in a row.");
  TORCH_CHECK(D <= 128, "The kernel takes heads of at most 128 numbers, not ", D, ".");
  const Tensor out = at::empty(query.sizes(), query.options());
  std::vector<Tile> tiles;
  for (int64_t i = 0; i < seq_lens.size(0); i++) {
    const int64_t* start = pointer<int64_t>(query_start_loc) + i;
    const int64_t num_tokens = start[1] - start[0], rows = num_tokens * G;
    const int64_t* table = pointer<int64_t>(block_table) + i * block_table.size(1);
    const int64_t position = pointer<int64_t>(seq_lens)[i] - num_tokens;
    for (int64_t kv_head = 0; kv_head < H_kv; kv_head++)
      for (int64_t row = 0; row < rows; row += ROWS)
        tiles.push_back({table, start[0], position, kv_head, row, std::min(ROWS, rows - row)});
  }
  dispatch(query, [&](auto number) {
    using T = decltype(number);
    const auto kernel = D <= 64 ? attend<T, 4> : attend<T, 8>;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < tiles.size(); i++)
      kernel(tiles[i], pointer<T>(out), pointer<T>(query), query.stride(0),
             pointer<T>(key_cache), pointer<T>(value_cache), key_cache.size(1), G,
             H_kv, D, scale);
  });
  return out;
}
