// Attention that follows the block table: 64 keys at a time, with the online softmax.
// T tokens, H query heads, H_kv key/value heads, D head_dim, G = H / H_kv.
#pragma once

#include <algorithm>

#include "vec.h"

// A row is a query of one head. The G heads that share a KV head give rows next to each other, so
// that keys and values, once fetched, serve all rows of a tile.
constexpr int64_t TOGETHER = 6;          // are computed with at a time
constexpr int64_t ROWS = 21 * TOGETHER;  // of a tile, at most: some 128, in whole groups
constexpr int64_t KEYS = 64;             // fetched at a time

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
  int64_t first_key, end_key;  // from the one to before the other; no row looks ahead of itself
  Partial* partials;  // [T, G] of this KV head; null if the rows' keys are done all at once
  bool is_partial;    // writes its partials. Else it goes on from those that are there
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

// c = a b, or c += a b: R rows of a, V vectors of columns. Their sums stay in registers while each row
// of b, of which there are n, meets one number of every row of a.
template <bool ADD, int64_t R, int64_t V>
inline void multiply(float* c, int64_t c_width, const float* a, int64_t a_width,
                     const float* const* b, int64_t column, int64_t n) {
  vec sum[R][V];
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < V; i++)
      sum[r][i] = ADD ? load(c + r * c_width + column + i * LANES) : vec{};
  for (int64_t j = 0; j < n; j++) {
    vec numbers[V];
    for (int64_t i = 0; i < V; i++) numbers[i] = load(b[j] + column + i * LANES);
    for (int64_t r = 0; r < R; r++)
      for (int64_t i = 0; i < V; i++) sum[r][i] += a[r * a_width + j] * numbers[i];
  }
  for (int64_t r = 0; r < R; r++)
    for (int64_t i = 0; i < V; i++) store(c + r * c_width + column + i * LANES, sum[r][i]);
}

// The same for up to TOGETHER rows and as many columns as you like, in vectors.
template <bool ADD, int64_t R = TOGETHER>
inline void multiply(int64_t rows, float* c, int64_t c_width, const float* a, int64_t a_width,
                     const float* const* b, int64_t n, int64_t columns) {
  if constexpr (R > 1)
    if (rows < R) return multiply<ADD, R - 1>(rows, c, c_width, a, a_width, b, n, columns);
  // What the registers have room for: AVX2's 16, the 32 of AVX-512.
  constexpr int64_t V = R > 3 && LANES == 8 ? 2 : 4;
  int64_t column = 0;
  for (; column + V * LANES <= columns; column += V * LANES)
    multiply<ADD, R, V>(c, c_width, a, a_width, b, column, n);
  for (; column < columns; column += LANES)
    multiply<ADD, R, 1>(c, c_width, a, a_width, b, column, n);
}

// Make weights of a row's next KEYS scores, relative to its largest score so far. If that is among
// them, what was summed relative to an older one shrinks.
template <int64_t WIDTH>
inline void soften(float* scores, float scale, float& largest, vec& total, float* weighted) {
  constexpr int64_t V = KEYS / LANES;
  vec score[V], most = load(scores), sum = {};
  for (int64_t i = 0; i < V; i++) score[i] = load(scores + i * LANES);
  for (int64_t i = 1; i < V; i++) most = larger_of(most, score[i]);
  const float larger = std::max(largest, largest_of(most));
  for (int64_t i = 0; i < V; i++) {
    const vec e = exponential((score[i] - larger) * scale);
    store(scores + i * LANES, e);
    sum += e;
  }
  if (larger > largest) {
    const float shrink = exponential((largest - larger) * scale);
    total *= shrink, largest = larger;
    for (int64_t d = 0; d < WIDTH; d += LANES) store(weighted + d, load(weighted + d) * shrink);
  }
  total += sum;
}

// Follow the block table, 64 keys at a time, with the online softmax of
// `paged_attention_reference`. WIDTH numbers hold a head; D of them are used, the rest is 0.
template <typename T, int64_t WIDTH>
void attend(const Tile& tile, const Tensors<T>& tensors) {
  const auto [out, query, query_stride, key_cache, value_cache, block_size, G, H_kv, D, scale] =
      tensors;
  static const float nothing[WIDTH] = {};
  alignas(64) float q[ROWS][WIDTH], weighted[ROWS][WIDTH], score[TOGETHER][KEYS];
  alignas(64) float wide_k[KEYS][WIDTH], wide_v[KEYS][WIDTH], turned[WIDTH][KEYS];
  const float *k[KEYS], *v[KEYS], *columns[WIDTH];
  float largest[ROWS];
  vec total[ROWS];  // of each row LANES partial sums
  std::fill_n(weighted[0], tile.rows * WIDTH, 0.0f);
  std::fill_n(total, tile.rows, vec{});
  std::fill_n(largest, ROWS, -INFINITY);
  for (int64_t d = 0; d < WIDTH; d++) columns[d] = turned[d];
  const auto token = [&](int64_t row) { return (tile.first_row + row) / G; };
  const auto head = [&](int64_t row) { return tile.kv_head * G + (tile.first_row + row) % G; };
  // With few rows the sums of products are less work than turning the keys.
  const bool few = tile.rows <= 8;
  // A head in float32 may stay in the cache.
  const auto in_place = [&](const T* from, float* wide) -> const float* {
    if constexpr (std::is_same_v<T, float>)
      if (D == WIDTH) return from;
    widen<WIDTH>(wide, from, D);
    return wide;
  };

  const auto place = [&](int64_t row) { return tile.first_token * G + tile.first_row + row; };
  for (int64_t row = 0; row < tile.rows; row++) {
    if (tile.partials && !tile.is_partial) {
      const Partial& before = tile.partials[place(row)];
      largest[row] = before.largest, total[row][0] = before.total;
      std::copy_n(before.weighted, D, weighted[row]);
    }
    const T* from = query + (tile.first_token + token(row)) * query_stride + head(row) * D;
    widen<WIDTH>(q[row], from, D);
  }
  const int64_t last_block = tile.first_position / block_size;
  const int64_t end_key = std::min(tile.end_key, tile.first_position + token(tile.rows - 1) + 1);
  int64_t in_table = tile.first_key / block_size, in_block = tile.first_key % block_size;
  for (int64_t begin = tile.first_key; begin < end_key; begin += KEYS) {
    const int64_t count = std::min(KEYS, end_key - begin);
    for (int64_t j = 0; j < count; j++) {
      const int64_t slot = tile.block_table[in_table] * block_size + in_block;
      const int64_t at = (slot * H_kv + tile.kv_head) * D;
      k[j] = in_place(key_cache + at, wide_k[j]);
      v[j] = in_place(value_cache + at, wide_v[j]);
      // Ask for the next 64 now: they arrive while these are computed with.
      const int64_t next = tile.block_table[std::min(in_table + KEYS / block_size, last_block)];
      const int64_t there = ((next * block_size + in_block) * H_kv + tile.kv_head) * D;
      for (int64_t d = 0; d < WIDTH; d += 64 / sizeof(T)) {
        __builtin_prefetch(key_cache + there + d);
        __builtin_prefetch(value_cache + there + d);
      }
      if (++in_block == block_size) in_block = 0, in_table++;
    }
    for (int64_t j = count; j < KEYS; j++) k[j] = v[j] = nothing;
    if (!few)
      for (int64_t j = 0; j < count; j += LANES)
        for (int64_t d = 0; d < WIDTH; d += LANES) {
          vec square[LANES];
          for (int64_t i = 0; i < LANES; i++) square[i] = load(k[j + i] + d);
          transpose(square);
          for (int64_t i = 0; i < LANES; i++) store(turned[d + i] + j, square[i]);
        }
    for (int64_t first = 0; first < tile.rows; first += TOGETHER) {
      const int64_t rows = std::min(TOGETHER, tile.rows - first);
      // Causal: the keys up to the row's own position.
      const auto seen = [&](int64_t row) {
        return std::min(count, tile.first_position + token(first + row) + 1 - begin);
      };
      const int64_t most = seen(rows - 1), size = (most + LANES - 1) / LANES * LANES;
      if (most <= 0) continue;
      if (few) {
        for (int64_t row = 0; row < rows; row++)
          for (int64_t j = 0; j < size; j += LANES) {
            vec products[LANES] = {};
#pragma GCC unroll 16
            for (int64_t i = 0; i < LANES; i++)
              for (int64_t d = 0; d < WIDTH; d += LANES)
                products[i] += load(&q[first + row][d]) * load(k[j + i] + d);
            store(score[row] + j, sums(products));
          }
      } else {
        multiply<false>(rows, score[0], KEYS, q[first], WIDTH, columns, WIDTH, size);
      }
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t j = std::max<int64_t>(seen(row), 0); j < KEYS; j++) score[row][j] = -INFINITY;
        soften<WIDTH>(score[row], scale, largest[first + row], total[first + row],
                      weighted[first + row]);
      }
      multiply<true>(rows, weighted[first], WIDTH, score[0], KEYS, v, most, WIDTH);
    }
  }
  for (int64_t row = 0; row < tile.rows; row++) {
    const float sum = sum_of(total[row]);
    if (tile.is_partial) {
      Partial& after = tile.partials[place(row)];
      after.largest = largest[row], after.total = sum;
      std::copy_n(weighted[row], D, after.weighted);
      continue;
    }
    T* to = out + ((tile.first_token + token(row)) * G * H_kv + head(row)) * D;
    for (int64_t d = 0; d < D; d++) to[d] = weighted[row][d] / sum;
  }
}
