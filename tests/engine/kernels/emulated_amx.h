// The instructions of AMX and AVX-512 that the kernels use, as plain C++: so every x86 processor can
// test what is compiled for those that have them. Given to the compiler before the kernels, with
// -include. Of AMX it also refuses what a processor refuses: tiles that nobody configured, or whose
// shapes don't fit. Semantics: Intel, "Architecture Instruction Set Extensions", chapter 3, and
// "Software Developer's Manual", volume 2.
#pragma once

// What the kernels include must come first: it must not believe in the instructions.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <torch/library.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace emulated {

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

inline thread_local Config config = {};
inline thread_local uint8_t tiles[8][16][64];
inline std::atomic<int64_t> products = 0;

inline void need(bool true_on_a_processor, const char* what) {
  if (true_on_a_processor) return;
  std::fprintf(stderr, "AMX would refuse: %s\n", what);
  std::abort();
}

inline void load_config(const void* from) {
  std::memcpy(&config, from, sizeof(Config));
  need(config.palette == 1 && config.start_row == 0, "a palette other than 1");
  for (int i = 0; i < 16; i++) {
    const bool used = config.rows[i] && config.row_bytes[i];
    need(used || (!config.rows[i] && !config.row_bytes[i]), "a tile with rows or columns only");
    need(config.rows[i] <= 16 && config.row_bytes[i] <= 64 && (i < 8 || !used), "a tile too large");
  }
  std::memset(tiles, 0, sizeof(tiles));
}

inline void release() { config = {}; }

inline void known(int tile) { need(config.palette && config.rows[tile], "a tile without a shape"); }

inline void zero(int tile) {
  known(tile);
  std::memset(tiles[tile], 0, sizeof(tiles[tile]));
}

inline void load(int tile, const void* from, int64_t stride) {
  zero(tile);
  for (int i = 0; i < config.rows[tile]; i++)
    std::memcpy(tiles[tile][i], (const char*)from + i * stride, config.row_bytes[tile]);
}

inline void store(int tile, void* to, int64_t stride) {
  known(tile);
  for (int i = 0; i < config.rows[tile]; i++)
    std::memcpy((char*)to + i * stride, tiles[tile][i], config.row_bytes[tile]);
}

// The numbers of a tile in float32, those at even places and those at odd ones.
struct Wide {
  float even[16][16], odd[16][16];
  explicit Wide(int tile) {
    for (int i = 0; i < 16; i++)
      for (int j = 0; j < 16; j++) {
        uint32_t pair;
        std::memcpy(&pair, tiles[tile][i] + 4 * j, 4);
        even[i][j] = std::bit_cast<float>(pair << 16);
        odd[i][j] = std::bit_cast<float>(pair & 0xffff0000);
      }
  }
};

// c [rows, columns] += a [rows, 2 pairs] times b, which lies as [pairs, columns, 2].
inline void multiply_add(int c, int a, int b) {
  known(a), known(b), known(c);
  const int rows = config.rows[c], columns = config.row_bytes[c] / 4, pairs = config.row_bytes[a] / 4;
  need(config.rows[a] == rows && config.row_bytes[b] == 4 * columns && config.rows[b] == pairs &&
       c != a && c != b && a != b, "tiles whose shapes don't fit, or one given twice");
  products++;
  const Wide left(a), right(b);  // beyond their rows and columns are zeros
  for (int i = 0; i < rows; i++) {
    float sums[16];
    std::memcpy(sums, tiles[c][i], 64);
    for (int k = 0; k < pairs; k++)
      for (int j = 0; j < 16; j++) {
        sums[j] += left.even[i][k] * right.even[k][j];
        sums[j] += left.odd[i][k] * right.odd[k][j];
      }
    std::memcpy(tiles[c][i], sums, 4 * columns);
  }
}

inline __m512i read(const void* from) {
  __m512i v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

// Number i of the result is that one of a's and b's numbers, all of them in a row, that pick[i] says.
template <typename Number>
inline __m512i permute(__m512i a, __m512i pick, __m512i b) {
  constexpr int N = 64 / sizeof(Number);
  Number from[2 * N], which[N], to[N];
  std::memcpy(from, &a, 64), std::memcpy(from + N, &b, 64), std::memcpy(which, &pick, 64);
  for (int i = 0; i < N; i++) to[i] = from[which[i] % (2 * N)];
  return read(to);
}

// To the nearest bfloat16, in case of a tie to the even one.
inline __m256i narrow(__m512 v) {
  uint32_t from[16];
  uint16_t to[16];
  std::memcpy(from, &v, sizeof(v));
  for (int i = 0; i < 16; i++) {
    const bool nan = (from[i] & 0x7fffffff) > 0x7f800000;
    to[i] = nan ? from[i] >> 16 | 0x40 : (from[i] + 0x7fff + (from[i] >> 16 & 1)) >> 16;
  }
  __m256i result;
  std::memcpy(&result, to, sizeof(to));
  return result;
}

}  // namespace emulated

extern "C" [[gnu::used, gnu::visibility("default")]] inline int64_t emulated_products() {
  return emulated::products;
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::load_config
#define _tile_release emulated::release
#define _tile_zero emulated::zero
#define _tile_loadd emulated::load
#define _tile_stored emulated::store
#define _tile_dpbf16ps emulated::multiply_add
#define _mm512_loadu_si512 emulated::read
#define _mm512_storeu_si512(to, v) std::memcpy(to, &(v), 64)
#define _mm512_permutex2var_epi32 emulated::permute<uint32_t>
#define _mm512_permutex2var_epi16 emulated::permute<uint16_t>
#define _mm512_cvtneps_pbh emulated::narrow
#define syscall(...) 0  // the tiles are granted

#undef __AVX512F__
#undef __AVX512BF16__
#undef __AMX_BF16__
#define __AVX512F__ 1
#define __AVX512BF16__ 1
#define __AMX_BF16__ 1
