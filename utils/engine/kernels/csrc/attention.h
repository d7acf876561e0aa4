// Attention that follows the block table: 64 keys at a time, with the online softmax.
// T tokens, H query heads, H_kv key/value heads, D head_dim, G = H / H_kv.
#pragma once

#include <algorithm>

#include "vec.h"

// A row is a query of one head. The G heads that share a KV head give rows next to each other, so
// that keys and values, once fetched, serve all rows of a tile.
constexpr int64_t ROWS = 64;
constexpr int64_t KEYS = 64;  // fetched at a time

// What is known of a row after some of its keys: its largest score, the sum of exponentials relative
// to that, and the sum of values weighted by them.
struct Partial {
  float largest, total, weighted[128];
};

struct Tile {
  const int64_t* block_table;
  int64_t first_token;     // of the request, in the flat batch
  int64_t first_position;  // of that token, in the request
  int64_t kv_head, first_row, rows;
  int64_t first_key, num_keys;  // from the one to before the other; no row looks ahead of itself
  Partial* partials;  // [T, G] of this KV head, if a prefix that requests share is done by itself:
  bool is_prefix;     // then its tiles leave here what the others go on from
};

// All tiles read and write the same tensors.
template <typename T>
struct Tensors {
  T* out;          // [T, H, D]
  const T* query;  // [T, H, D], a token every `query_stride` numbers
  int64_t query_stride;
  const T *key_cache, *value_cache;  // [blocks, block_size, H_kv, D]
  int64_t block_size, G, H_kv, D;
  float scale;
};

// Follow the block table, 64 keys at a time, with the online softmax of
// `paged_attention_reference`. VECS vectors hold a head; D numbers of them are used, the rest is 0.
template <typename T, int64_t VECS>
void attend(const Tile& tile, const Tensors<T>& tensors) {
  const auto [out, query, query_stride, key_cache, value_cache, block_size, G, H_kv, D, scale] =
      tensors;
  constexpr int64_t WIDTH = VECS * LANES;
  alignas(64) float q[ROWS][WIDTH], weighted[ROWS][WIDTH], k[KEYS][WIDTH], v[KEYS][WIDTH];
  alignas(64) float score[KEYS];
  float largest[ROWS], total[ROWS];
  std::fill_n(weighted[0], tile.rows * WIDTH, 0.0f);
  std::fill_n(total, ROWS, 0.0f);
  std::fill_n(largest, ROWS, -INFINITY);
  const auto token = [&](int64_t row) { return (tile.first_row + row) / G; };
  const auto head = [&](int64_t row) { return tile.kv_head * G + (tile.first_row + row) % G; };

  const auto place = [&](int64_t row) { return tile.first_token * G + tile.first_row + row; };
  for (int64_t row = 0; row < tile.rows; row++) {
    if (tile.partials && !tile.is_prefix) {
      const Partial& before = tile.partials[place(row)];
      largest[row] = before.largest, total[row] = before.total;
      std::copy_n(before.weighted, D, weighted[row]);
    }
    const T* from = query + (tile.first_token + token(row)) * query_stride + head(row) * D;
    widen<WIDTH>(q[row], from, D);
  }
  const int64_t last_block = tile.first_position / block_size;
  const int64_t num_keys = std::min(tile.num_keys, tile.first_position + token(tile.rows - 1) + 1);
  int64_t in_table = tile.first_key / block_size, in_block = tile.first_key % block_size;
  for (int64_t begin = tile.first_key; begin < num_keys; begin += KEYS) {
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
    if (tile.is_prefix) {
      Partial& after = tile.partials[place(row)];
      after.largest = largest[row], after.total = total[row];
      std::copy_n(weighted[row], D, after.weighted);
      continue;
    }
    T* to = out + ((tile.first_token + token(row)) * G * H_kv + head(row)) * D;
    for (int64_t d = 0; d < D; d++) to[d] = weighted[row][d] / total[row];
  }
}
