// Products of bfloat16 matrices in the processor itself (Intel's AMX, since 2023): 16 x 32 times
// 32 x 16 in one instruction. It wants the second matrix in pairs of rows: what is multiplied with
// two neighbours of a row lies side by side, as [column, 2].
#pragma once

#include "vec.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HAVE_AMX
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

constexpr int64_t PANEL = 16;  // columns of the second matrix that lie together

// Linux saves the tiles, 8 kB, only for a process that has asked for them.
inline bool amx_allowed() {
  static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return allowed;
}

inline __m512i read(const void* from) { return _mm512_loadu_si512(from); }
inline void round(bfloat16* to, vec v) {
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}
inline void write(void* to, __m512i v) { _mm512_storeu_si512(to, v); }

// One of four steps that transpose 16 x 16: rows whose numbers differ in bit S swap halves.
template <int S>
inline void swap(__m512i (&rows)[16]) {
  alignas(64) int32_t low[16], high[16];
  for (int i = 0; i < 16; i++) low[i] = i & S ? 16 + i - S : i, high[i] = i & S ? 16 + i : i + S;
  const __m512i pick_low = read(low), pick_high = read(high);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    if (i & S) continue;
    const __m512i a = rows[i], b = rows[i + S];
    rows[i] = _mm512_permutex2var_epi32(a, pick_low, b);
    rows[i + S] = _mm512_permutex2var_epi32(a, pick_high, b);
  }
}

// 16 keys of D numbers become a panel of Q K^T's second matrix: [D / 2, 16 keys, 2].
inline void pack_keys(bfloat16* panel, const bfloat16* const (&keys)[16], int64_t D) {
  for (int64_t d = 0; d < D; d += 32) {
    __m512i rows[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) rows[i] = read(keys[i] + d);
    swap<1>(rows), swap<2>(rows), swap<4>(rows), swap<8>(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) write(panel + (d / 2 + i) * 32, rows[i]);
  }
}

// The values of two keys become a row of each panel of P V's second matrix, [16 numbers, 2].
inline void pack_values(bfloat16* to, const bfloat16* even, const bfloat16* odd, int64_t D,
                        int64_t panel_size) {
  alignas(64) int16_t low[32], high[32];
  for (int i = 0; i < 32; i++) low[i] = i / 2 + (i % 2) * 32, high[i] = low[i] + 16;
  for (int64_t d = 0; d < D; d += 32, to += 2 * panel_size) {
    const __m512i a = read(even + d), b = read(odd + d);
    write(to, _mm512_permutex2var_epi16(a, read(low), b));
    write(to + panel_size, _mm512_permutex2var_epi16(a, read(high), b));
  }
}

// c [rows, COLUMNS] = a [rows, DEPTH] times b, which lies as [COLUMNS / 16, DEPTH / 2, 16, 2].
template <int64_t DEPTH, int64_t COLUMNS>
inline void multiply(float* c, const bfloat16* a, const bfloat16* b) {
  constexpr int64_t SIZE = DEPTH * PANEL;  // of a panel
  for (int64_t first = 0; first < COLUMNS; first += 4 * PANEL) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < DEPTH; k += 32) {
      const bfloat16* from = b + first * DEPTH + k * PANEL;
      _tile_loadd(4, a + k, 2 * DEPTH);
      _tile_loadd(5, from, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, from + SIZE, 64);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(7, from + 2 * SIZE, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, from + 3 * SIZE, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, c + first, 4 * COLUMNS);
    _tile_stored(1, c + first + PANEL, 4 * COLUMNS);
    _tile_stored(2, c + first + 2 * PANEL, 4 * COLUMNS);
    _tile_stored(3, c + first + 3 * PANEL, 4 * COLUMNS);
  }
}

// c [16, 16 rows] = a [16 rows, DEPTH], a row every `stride` numbers, times b, which lies as
// [DEPTH / 2, 16, 2], turned: columns became rows.
template <int64_t DEPTH>
inline void multiply_turned(__m512i (&c)[16], const bfloat16* a, int64_t stride,
                            const bfloat16* b) {
  alignas(64) float product[16][16];
  _tile_zero(5);
  for (int64_t k = 0; k < DEPTH; k += 32) {
    _tile_loadd(6, a + k, 2 * stride);
    _tile_loadd(7, b + k * PANEL, 64);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_stored(5, product, 64);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) c[i] = read(product[i]);
  swap<1>(c), swap<2>(c), swap<4>(c), swap<8>(c);
}

// Tells AMX how many rows its tiles have: those of c and a `rows`, those of b 16. The tiles are
// the thread's, and oneDNN uses them, too: they are given back in the end.
class AmxTiles {
 public:
  explicit AmxTiles(int64_t rows) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; i++) config.row_bytes[i] = 64, config.rows[i] = i < 5 ? rows : 16;
    _tile_loadconfig(&config);
  }
  ~AmxTiles() { _tile_release(); }
};
#endif
