// How the attention of a batch is cut into tiles, so that all threads have work and keys are fetched
// seldom.
// T tokens, B requests, H_kv key/value heads, G query heads for each of them.
#pragma once

#include <omp.h>

#include <memory>
#include <vector>

#include "attention.h"

// The requests of a flat batch.
struct Requests {
  const int64_t* start;   // [B + 1] places in the batch
  const int64_t* length;  // [B] tokens, old and new
  const int64_t* tables;  // [B, most_blocks]
  int64_t T, B, most_blocks, block_size, H_kv, G;

  int64_t new_tokens(int64_t i) const { return start[i + 1] - start[i]; }
  int64_t old_tokens(int64_t i) const { return length[i] - new_tokens(i); }
  const int64_t* table(int64_t i) const { return tables + i * most_blocks; }

  // How many tokens at their beginning all have in the same blocks, and see whole.
  int64_t common_prefix() const {
    int64_t common = most_blocks;
    for (int64_t i = 0; i < B; i++) {
      common = std::min(common, old_tokens(i) / block_size);
      common = std::mismatch(table(i), table(i) + common, tables).first - table(i);
    }
    return common * block_size;
  }
};

// Keys that are fetched for one head while the other heads' keys beside them are still in a cache.
constexpr int64_t NEARBY = 512;

// Where requests share a long prefix, its keys and values are fetched once for all of them, and
// each goes on from there with its own (cascade attention; Ye et al. 2024, "Cascade Inference").
// Where there are too few tiles for all threads, the keys are cut into pieces, whose results are
// merged (Dao et al. 2023, "Flash-Decoding"). So they are where each request has one new token: all
// heads' next NEARBY keys come one after the other, because they lie side by side in memory.
class Work {
 public:
  std::vector<Tile> of_prefix, of_requests;  // all of those before any of these
  bool merged = false;                       // the requests' tiles leave partials to merge

  // Tiles hold up to `most` times as many rows as the kernel takes `together`.
  Work(const Requests& requests, int64_t together, int64_t most)
      : r(requests), together(together), most_rows(together * most) {
    // Not where each request has rows enough to fill tiles: fetching is little of their work.
    int64_t prefix = r.B >= 4 && r.T * r.G < r.B * most_rows ? r.common_prefix() : 0;
    if (prefix < KEYS) prefix = 0;
    int64_t tiles = 0, most_pieces = 1;
    for (int64_t i = 0; i < r.B; i++) tiles += r.H_kv * tiles_of(r.new_tokens(i));
    if (!prefix && tiles) split = (2 * omp_get_max_threads() - 1) / tiles + 1;
    longest = !prefix && r.T == r.B ? NEARBY : INT64_MAX;
    for (int64_t i = 0; i < r.B; i++) most_pieces = std::max(most_pieces, pieces(i));
    merged = most_pieces > 1;
    if (prefix || merged)
      partials = std::make_unique_for_overwrite<Partial[]>(most_pieces * r.H_kv * r.T * r.G);
    if (prefix)
      cut(of_prefix, {.block_table = r.tables, .first_position = prefix, .end_key = prefix,
                      .is_partial = true}, r.T, 0);
    for (int64_t i = 0; i < r.B; i++)
      for (int64_t j = 0, last = pieces(i) - 1; j <= last; j++)
        cut(of_requests, {.block_table = r.table(i), .first_token = r.start[i],
                          .first_position = r.old_tokens(i),
                          .first_key = merged ? j * piece(i) : prefix,
                          .end_key = j < last ? (j + 1) * piece(i) : r.length[i],
                          .is_partial = merged}, r.new_tokens(i), j);
  }

  // How many pieces the keys of a request are cut into. Every row sees the first key of the last.
  int64_t pieces(int64_t i) const { return r.old_tokens(i) / piece(i) + 1; }

  // What is known of all rows [T, G] of a head, after a piece of their keys.
  Partial* partials_of(int64_t piece, int64_t kv_head) const {
    return &partials[(piece * r.H_kv + kv_head) * r.T * r.G];
  }

 private:
  const Requests& r;
  int64_t together, most_rows, split = 1, longest;
  std::unique_ptr<Partial[]> partials;

  int64_t tiles_of(int64_t tokens) const { return (tokens * r.G + most_rows - 1) / most_rows; }

  // How many keys a piece has: whole steps of `attend`.
  int64_t piece(int64_t i) const {
    const int64_t step = split * KEYS, share = (r.length[i] + step - 1) / step * KEYS;
    return std::min(std::max(2 * KEYS, share), longest);
  }

  // Rows of all heads, in tiles of much the same size.
  void cut(std::vector<Tile>& to, Tile tile, int64_t tokens, int64_t piece) {
    const int64_t rows = tokens * r.G, n = tiles_of(tokens);
    const int64_t groups = (rows + together - 1) / together;
    for (tile.kv_head = 0; tile.kv_head < r.H_kv; tile.kv_head++) {
      tile.partials = partials ? partials_of(piece, tile.kv_head) : nullptr;
      for (int64_t j = 0; j < n; j++) {
        tile.first_row = groups * j / n * together;
        tile.rows = std::min(rows, groups * (j + 1) / n * together) - tile.first_row;
        to.push_back(tile);
      }
    }
  }
};
