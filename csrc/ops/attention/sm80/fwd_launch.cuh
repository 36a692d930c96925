// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/plan.cuh"
#include "ops/attention/tile_scheduler.cuh"

// The grid of a forward kernel on the portable path.
namespace plab::ops::attention::sm80 {

template <void (*kKernel)(FwdParams, TileGrid)>
void launch_fwd(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  launch_kernel(kKernel, how, stream, params, how.tiles);
}

template <class Config, void (*kKernel)(FwdParams, TileGrid)>
FwdPlan plan_fwd_kernel(const Problem& p) {
  const int64_t kv_bytes =
      (p.cu_seqlens_k ? p.k_len / p.batch : p.k_len) * p.head_dim * 4 * p.kv_heads / p.heads;
  const TileGrid tiles = make_tile_grid(p, true, Config::kTileQ, kv_bytes);
  FwdPlan plan;
  plan.add({launch_fwd<kKernel>, blocks(tiles), Config::kThreads, Config::kSmemBytes, tiles});
  return plan;
}

}  // namespace plab::ops::attention::sm80
