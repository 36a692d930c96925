// SPDX-License-Identifier: Apache-2.0
// Attention three times, O = softmax(mask(Q K^T scale)) V: each rung of the ladder removes what limited the
// one before. It is written to be read; attention/ is the op to use. ladder_attention.cpp checks the arguments, the
// other files assume them.
#pragma once

#include <cstdint>

#include "ops/element_type.h"

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::ops::ladder {

// q and out are (batch, rows, heads, head_dim), k and v (batch, keys, heads, head_dim), all contiguous.
struct Params {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  float* scores;  // CUDA, naive and tiled: scratch of batch * heads * rows * keys floats
  int64_t batch, heads, rows, keys, head_dim;
  double scale;
  bool causal;
  ElementType type;
};

// Query `row` sees keys [0, visible_keys). Under a causal mask the last query sees the last key, so
// with more rows than keys the first rows see nothing; their output is 0.
constexpr int64_t visible_keys(const Params& p, int64_t row) {
  if (!p.causal) return p.keys;
  const int64_t end = row + 1 + p.keys - p.rows;
  return end < 0 ? 0 : end < p.keys ? end : p.keys;
}

void naive_cpu(const Params& params);
void tiled_cpu(const Params& params);
void flash_cpu(const Params& params);

constexpr int64_t kFlashMaxHeadDim = 128;  // of the CUDA kernel: what two tiles of fp32 leave room for

void launch_naive(const Params& params, cudaStream_t stream);
void launch_tiled(const Params& params, cudaStream_t stream);
void launch_flash(const Params& params, cudaStream_t stream);

}  // namespace plab::ops::ladder
