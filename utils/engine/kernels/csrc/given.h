// What the kernels ask of their arguments before they touch memory: beyond a tensor's end lies
// somebody else's. Each error names the argument, what it is, and what was expected.
// T tokens, B requests, H_kv key/value heads, D head_dim.
#pragma once

#include "vec.h"

constexpr int64_t ANY = -1;  // in expected sizes

// Its sizes and type, in the memory of the CPU as they are to be read.
inline void expect_like(const Tensor& tensor, const char* name, at::IntArrayRef sizes,
                        at::ScalarType type) {
  TORCH_CHECK(tensor.is_cpu(), name, " lies on ", tensor.device(), "; expected the CPU.");
  TORCH_CHECK(!tensor.is_neg(), name, " is negated, and its memory is not yet: resolve_neg() it.");
  TORCH_CHECK(tensor.scalar_type() == type, name, " is ", tensor.scalar_type(), "; expected ",
              type, ".");
  bool fits = tensor.dim() == int64_t(sizes.size());
  for (int64_t i = 0; fits && i < tensor.dim(); i++)
    fits = sizes[i] == ANY || sizes[i] == tensor.size(i);
  TORCH_CHECK(fits, name, " has shape ", tensor.sizes(), "; expected ", sizes, " (-1: any).");
}

// And its numbers one after the other.
inline void expect(const Tensor& tensor, const char* name, at::IntArrayRef sizes,
                   at::ScalarType type) {
  expect_like(tensor, name, sizes, type);
  TORCH_CHECK(tensor.is_contiguous(), name, " is not contiguous.");
}

// Heads [T, heads, D]: those of a token one after the other, tokens anywhere.
inline void expect_heads(const Tensor& x, const char* name, at::IntArrayRef sizes) {
  expect_like(x, name, sizes, x.scalar_type());
  TORCH_CHECK(x.stride(1) == x.size(2) && x.stride(2) == 1, name,
              ": a token's heads must lie in a row.");
}

// Slots [T], each in a cache of so many.
inline void expect_slots(const Tensor& slot_mapping, int64_t tokens, int64_t num_slots) {
  expect(slot_mapping, "slot_mapping", {tokens}, at::kLong);
  for (int64_t t = 0; t < tokens; t++) {
    const int64_t slot = pointer<int64_t>(slot_mapping)[t];
    TORCH_CHECK(0 <= slot && slot < num_slots, "slot_mapping names slot ", slot,
                "; the cache has ", num_slots, ".");
  }
}

// The requests of a flat batch of T tokens, whose blocks all lie in the cache.
inline void expect_batch(int64_t tokens, int64_t num_blocks, int64_t block_size,
                         const Tensor& query_start_loc, const Tensor& seq_lens,
                         const Tensor& block_table) {
  TORCH_CHECK(block_size > 0, "The cache has blocks of ", block_size, " tokens.");
  const int64_t B = seq_lens.numel();
  expect(seq_lens, "seq_lens", {B}, at::kLong);
  expect(query_start_loc, "query_start_loc", {B + 1}, at::kLong);
  expect(block_table, "block_table", {B, ANY}, at::kLong);
  const int64_t *start = pointer<int64_t>(query_start_loc), *length = pointer<int64_t>(seq_lens);
  const int64_t *table = pointer<int64_t>(block_table), most = block_table.size(1);
  TORCH_CHECK(start[0] == 0 && start[B] == tokens, "query_start_loc goes from ", start[0], " to ",
              start[B], "; expected 0 to ", tokens, ", the tokens of query.");
  for (int64_t i = 0; i < B; i++, table += most) {
    const int64_t queries = start[i + 1] - start[i];
    const int64_t blocks = length[i] / block_size + (length[i] % block_size > 0);
    TORCH_CHECK(0 <= queries && queries <= length[i] && blocks <= most, "request ", i, " has ",
                queries, " new tokens, seq_lens ", length[i], " and ", most, " blocks of ",
                block_size, ": these do not fit together.");
    for (int64_t block = 0; block < blocks; block++)
      TORCH_CHECK(0 <= table[block] && table[block] < num_blocks, "block_table names block ",
                  table[block], "; the cache has ", num_blocks, ".");
  }
}
