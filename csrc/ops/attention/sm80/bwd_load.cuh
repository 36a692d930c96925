// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm80/tiles.cuh"

// What a backward kernel that walks over queries prefetches.
namespace plab::ops::attention::sm80 {

// A stage of the backwards that walk over queries: Q, dO, and LSE and delta of kTileQ rows from `first` on.
template <class Config>
__device__ __forceinline__ void load_query_stage(const BwdParams& p, const Tile& tile, uint32_t stage,
                                                 int head, int first) {
  using Element = typename Config::Element;
  constexpr int kM = Config::kTileQ, kD = Config::kHeadDim, kThreads = Config::kThreads;
  static_assert(2 * kM <= kThreads);
  const int rows = tile.q_len - first, dim = p.problem.head_dim;
  const int64_t row = tile.q_row + first;
  load_tile<kM, kD, kThreads>(stage, row_pointer<const Element>(p.q, tile.batch, row, head), p.q.row, rows,
                              dim);
  load_tile<kM, kD, kThreads>(stage + Config::kBytesQ,
                              row_pointer<const Element>(p.dout, tile.batch, row, head), p.dout.row, rows,
                              dim);
  const int64_t stat = tile.batch * p.rows.batch + head * p.rows.head + row;
  if (int(threadIdx.x) < 2 * kM) {
    const int which = int(threadIdx.x) / kM, i = int(threadIdx.x) % kM;
    const float* from = static_cast<const float*>(which ? p.delta : p.lse_log2);
    ptx::cp_async_4(stage + 2 * Config::kBytesQ + threadIdx.x * 4, from + stat + i, i < rows);
  }
  ptx::cp_async_commit();
}

}  // namespace plab::ops::attention::sm80
