// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// A block mask in the forward: a step of its loop is a block of a tile's list, or half of one, where key tiles have 64
// keys.
namespace plab::ops::attention::sm90 {

template <class Config>
constexpr int kStepsOfBlock = BlockMask::kKeys / Config::kTileKv;

// Where the list of a tile begins.
__device__ __forceinline__ int first_block(const BlockMask& mask, int batch, int head, int tile) {
  return (batch * mask.batch_stride + head * mask.head_stride + tile) * mask.most;
}

// The first key of a step.
template <class Config>
__device__ __forceinline__ int key_of_step(const BlockMask& mask, int list, int step) {
  constexpr int kSteps = kStepsOfBlock<Config>;
  return mask.blocks[list + step / kSteps].number * BlockMask::kKeys + step % kSteps * Config::kTileKv;
}

// What a step is for the 64 rows of a warpgroup: BlockMask::Block::parts. Asked for before the step's scores are
// waited for.
template <class Config>
__device__ __forceinline__ int part_of_step(const BlockMask& mask, int list, int step, int group) {
  if (!Config::kCached || mask.counts == nullptr) return BlockMask::kAll;
  return mask.blocks[list + step / kStepsOfBlock<Config>].parts[group];
}

// Scores that the mask hides become -inf. `band`: the warp's first row in the tile.
template <class Config>
__device__ __forceinline__ void mask_by_blocks(float (&s)[Config::kTileKv / 2], const BlockMask& mask,
                                               int part, int step, int band) {
  constexpr int kSteps = kStepsOfBlock<Config>, kWords = BlockMask::kKeys / 32;
  const int lane = int(threadIdx.x & 31);
  if (part == BlockMask::kAll) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t seen[kWords / kSteps] = {};
    if (part >= 0) {
      const int64_t row = int64_t{part} * BlockMask::kRows + band % BlockMask::kRows + lane / 4 + 8 * h;
      const uint32_t* const words = mask.bits + row * kWords + step % kSteps * (kWords / kSteps);
#pragma unroll
      for (int w = 0; w < kWords / kSteps; ++w) seen[w] = words[w] >> (2 * (lane % 4));
    }
#pragma unroll
    for (int i = 2 * h; i < Config::kTileKv / 2; i += 4) {
      const uint32_t bits = seen[i / 16] >> (i / 4 % 4 * 8);
      if (!(bits & 1)) s[i] = -INFINITY;
      if (!(bits & 2)) s[i + 1] = -INFINITY;
    }
  }
}

}  // namespace plab::ops::attention::sm90
