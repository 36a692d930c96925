// SPDX-License-Identifier: Apache-2.0
// How shifted rows (portable/shifted.cuh) are distributed over blocks, or over clusters of as many blocks as suits them.
#pragma once

#include "cuda/launch.h"
#include "cuda/pair_sum.cuh"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/shifted.cuh"

namespace plab::ops::layer_norm_gelu::sm90 {

constexpr int kMostBlocks = 16, kMostWarps = 20;  // of a cluster, of a block
constexpr int kLeastThreads = 128;                // of a block, where fewer blocks would do

template <class Element, int kColumns>
using ShiftedTile = RowTile<Element, kColumns / cuda::kVecSize<Element>, Access::kShifted>;
using ShiftedGroup = cuda::ClusterPairSum<0>;

template <class Element, bool k16Bit = sizeof(Element) == 2>
using ShiftedForward = ForwardConfig<ShiftedTile<Element, k16Bit ? 32 : 16>, ShiftedGroup, k16Bit ? 640 : 768,
                                     k16Bit ? Weights::kRegisters : Weights::kFloats, 3, GeluForm::kErf>;
template <class Element, bool k16Bit = sizeof(Element) == 2>
using ShiftedBackward = BackwardConfig<ShiftedTile<Element, 16>, ShiftedGroup, 640, kWarpsPerBlock,
                                       Weights::kShared, k16Bit ? 3 : 2, false, GeluForm::kErf>;

/// Rows that lie this far apart start at the same distance from 16 bytes.
inline int shifted_period(int64_t cols, int vec_size) {
  int rows = 1;
  while (rows * cols % vec_size != 0) rows *= 2;
  return rows;
}

/// Threads of each of `blocks` blocks that share a row, in whole warps.
inline int shifted_threads(int64_t cols, int vec_size, int vecs_of_thread, int blocks) {
  const int largest_shift = vec_size - vec_size / shifted_period(cols, vec_size);  // in elements
  const int64_t vecs = cuda::ceil_div<int64_t>(cols + largest_shift, vec_size);
  const int64_t warps = cuda::ceil_div<int64_t>(vecs, int64_t{blocks} * vecs_of_thread * cuda::kWarpSize);
  return static_cast<int>(warps * cuda::kWarpSize);
}

/// How many groups share the rows: a multiple of the period, so that a group's rows start alike, unless each group has
/// one row. Of up to `waves` waves of `resident` groups that number which leaves the fewest idle; another wave costs
/// what its groups begin and end with.
inline int64_t shifted_groups(int64_t rows, int64_t resident, int period, int waves) {
  if (rows <= resident) return rows;
  int64_t best = period;
  float best_score = 0.0f;
  for (int n = 1; n <= waves; ++n) {
    const int64_t groups = resident * n / period * period;
    if (groups > rows) break;
    const float busy = static_cast<float>(groups) / static_cast<float>(resident * n);
    const float score = busy - 0.03f * static_cast<float>(n);
    if (groups > 0 && score > best_score) best = groups, best_score = score;
  }
  return cuda::smaller(best, rows);
}

struct ShiftedShape {
  int blocks = 0, threads = 0;  // of a cluster, of a block
  int64_t resident = 0;         // clusters
};

/// Without a kernel where a row does not fit 16 blocks. The number of blocks: the one with which most rows are on the
/// GPU at once, because then least of it is idle; better with several blocks on an SM, of which one computes while
/// another waits for its row's sums.
template <class Config, auto kKernel, class Params>
Plan plan_shifted(const Params& params, int waves) {
  using Tile = typename Config::Tile;
  const auto bytes = [](int blocks, int threads) {
    return Config::shared_bytes(threads, threads, false) + ShiftedGroup::dynamic_bytes(blocks, threads);
  };
  ShiftedShape best;
  float best_score = 0.0f;
  for (int blocks = 1; blocks <= kMostBlocks; ++blocks) {
    const int threads = shifted_threads(params.cols, Tile::kVecSize, Tile::kVecs, blocks);
    const int shared_bytes = bytes(blocks, threads);
    if (threads > cuda::smaller(kMostWarps * cuda::kWarpSize, Config::kResidentThreads) ||
        shared_bytes > cuda::max_shared_bytes())
      continue;
    if (best.threads > 0 && threads < kLeastThreads) break;
    const int64_t resident = cuda::clusters_of_any_size<kKernel>(blocks, threads, shared_bytes);
    const bool alone = resident * blocks <= cuda::sm_count();
    const float score = static_cast<float>(resident) * (alone ? 0.9f : 1.0f);
    if (score > 1.05f * best_score) best = {blocks, threads, resident}, best_score = score;
  }
  if (best.threads == 0) return {};
  const int64_t groups =
      shifted_groups(params.rows, best.resident, shifted_period(params.cols, Tile::kVecSize), waves);
  Plan plan;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.blocks = groups * best.blocks;
  plan.threads = best.threads;
  plan.shared_bytes = bytes(best.blocks, best.threads);
  plan.cluster = best.blocks > 1 ? best.blocks : 0;
  plan.order = RowOrder{cuda::ceil_div(params.rows, groups), true, 0, 1.0f / static_cast<float>(params.cols)};
  plan.workspace_rows = groups > 1 ? groups : 0;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::sm90
