// `attend` for bfloat16, with the matrix products of AMX: 64 keys and values are brought into the
// order that this wants (of few rows and their keys, the rows), then 16 rows at a time are multiplied.
// Probabilities are rounded to bfloat16 before they meet the values.
#pragma once

#include "attention.h"
#include "amx.h"

#ifdef HAVE_AMX
template <int64_t D>
void attend_amx(const Tile& tile, const Tensors<bfloat16>& tensors) {
  const auto [out, query, query_stride, key_cache, value_cache, block_size, G, H_kv, _, scale] =
      tensors;
  alignas(64) static const bfloat16 nothing[D] = {};
  alignas(64) bfloat16 q[ROWS][D], p[LANES][KEYS], k[KEYS * D], v[KEYS * D];
  alignas(64) float score[LANES][KEYS], more[LANES][D], weighted[ROWS][D];
  alignas(64) float largest[ROWS], larger[LANES], shrink[LANES];
  vec total[ROWS];  // of each row 16 partial sums
  std::fill_n(weighted[0], tile.rows * D, 0.0f);
  std::fill_n(total, tile.rows, vec{});
  std::fill_n(largest, ROWS, -INFINITY);
  const auto token = [&](int64_t row) { return (tile.first_row + row) / G; };
  const auto head = [&](int64_t row) { return tile.kv_head * G + (tile.first_row + row) % G; };
  const auto place = [&](int64_t row) { return tile.first_token * G + tile.first_row + row; };
  const AmxTiles tiles(std::min(tile.rows, LANES));
  // With few rows it is cheaper to bring these into order than the keys, which then are the first
  // matrix and stay where they are. 16 of them must lie one after the other.
  const bool few = tile.rows <= LANES && block_size % 16 == 0;

  for (int64_t row = 0; row < tile.rows; row++) {
    std::copy_n(query + (tile.first_token + token(row)) * query_stride + head(row) * D, D, q[row]);
    if (!tile.partials || tile.is_partial) continue;
    const Partial& before = tile.partials[place(row)];
    largest[row] = before.largest, total[row][0] = before.total;
    std::copy_n(before.weighted, D, weighted[row]);
  }
  if (few) {
    const bfloat16* rows[16];
    for (int64_t row = 0; row < 16; row++) rows[row] = row < tile.rows ? q[row] : nothing;
    pack_keys(k, rows, D);
  }
  const int64_t last_block = tile.first_position / block_size;
  const int64_t end_key = std::min(tile.end_key, tile.first_position + token(tile.rows - 1) + 1);
  int64_t in_table = tile.first_key / block_size, in_block = tile.first_key % block_size;
  for (int64_t begin = tile.first_key; begin < end_key; begin += KEYS) {
    const int64_t count = std::min(KEYS, end_key - begin);
    for (int64_t first = 0; first < KEYS; first += 16) {
      const bfloat16 *keys[16], *values[16];
      for (int64_t j = 0; j < 16; j++) {
        keys[j] = values[j] = nothing;
        if (first + j >= count) continue;
        const int64_t slot = tile.block_table[in_table] * block_size + in_block;
        keys[j] = key_cache + (slot * H_kv + tile.kv_head) * D;
        values[j] = value_cache + (slot * H_kv + tile.kv_head) * D;
        // Ask for the next 64 now: they arrive while these are computed with.
        const int64_t next = tile.block_table[std::min(in_table + KEYS / block_size, last_block)];
        const int64_t there = ((next * block_size + in_block) * H_kv + tile.kv_head) * D;
        for (int64_t d = 0; d < D; d += 32) {
          __builtin_prefetch(key_cache + there + d);
          __builtin_prefetch(value_cache + there + d);
        }
        if (++in_block == block_size) in_block = 0, in_table++;
      }
      if (few) {
        __m512i turned[16];
        multiply_turned<D>(turned, keys[0], first < count ? H_kv * D : 0, k);
        for (int64_t row = 0; row < tile.rows; row++) write(score[row] + first, turned[row]);
      } else {
        pack_keys(k + first * D, keys, D);
      }
      for (int64_t j = 0; j < 16; j += 2)
        pack_values(v + (first + j) * PANEL, values[j], values[j + 1], D, KEYS * PANEL);
    }
    for (int64_t first = 0; first < tile.rows; first += LANES) {
      const int64_t rows = std::min(LANES, tile.rows - first);
      // Causal: the keys up to the row's own position.
      const auto seen = [&](int64_t row) {
        return std::min(count, tile.first_position + token(first + row) + 1 - begin);
      };
      if (seen(rows - 1) <= 0) continue;
      if (!few) multiply<D, KEYS>(score[0], q[first], k);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t j = std::max<int64_t>(seen(row), 0); j < KEYS; j++) score[row][j] = -INFINITY;
        vec most = load(score[row]);
        for (int64_t j = LANES; j < KEYS; j += LANES) most = larger_of(most, load(score[row] + j));
        larger[row] = std::max(largest[first + row], largest_of(most));
      }
      store(shrink, exponential((load(largest + first) - load(larger)) * scale));
      std::copy_n(larger, rows, largest + first);
      for (int64_t row = 0; row < rows; row++) {
        vec sum = total[first + row] * shrink[row];
        for (int64_t j = 0; j < KEYS; j += LANES) {
          const vec e = exponential((load(score[row] + j) - larger[row]) * scale);
          sum += e;
          round(p[row] + j, e);
        }
        total[first + row] = sum;
      }
      multiply<KEYS, D>(more[0], p[0], v);
      for (int64_t row = 0; row < rows; row++)
        for (int64_t d = 0; d < D; d += LANES)
          store(weighted[first + row] + d,
                load(weighted[first + row] + d) * shrink[row] + load(more[row] + d));
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
    bfloat16* to = out + ((tile.first_token + token(row)) * G * H_kv + head(row)) * D;
    for (int64_t d = 0; d < D; d += LANES) round(to + d, load(weighted[row] + d) / sum);
  }
}
#endif
