// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/wide/kv_kernel.cuh"
#include "ops/attention/sm90/wide/q_kernel.cuh"

// The backward above head_dim 128: two kernels and their grids. The first one starts while the row statistics are
// computed, the second one, which needs nothing of the first, while that ends.
namespace plab::ops::attention::sm90 {

template <class Config, void (*kKernel)(BwdParams, TileGrid, BwdMaps)>
void launch_bwd(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_early(kKernel, how, stream, params, how.tiles,
               make_bwd_maps(params, Config::kTileQ, Config::kTileKv));
}

template <class Config, void (*kKernel)(BwdParams, TileGrid, BwdMaps)>
KernelLaunch<BwdParams> bwd_launch(const TileGrid& tiles) {
  return {launch_bwd<Config, kKernel>, blocks(tiles), Config::kThreads, Config::kSmemBytes, tiles};
}

// Kv and Q: BwdKvConfig and BwdQConfig.
template <class Kv, class Q>
BwdPlan plan_bwd_wide(const Problem& p) {
  const int64_t kv_bytes =
      p.k_len / (p.cu_seqlens_k ? p.batch : 1) * (p.head_dim + p.head_dim_v) * 2 * p.kv_heads / p.heads;
  BwdPlan plan;
  plan.add(bwd_launch<Kv, attention_bwd_wide_sm90_kernel<Kv>>(make_key_grid<Kv>(p)));
  plan.add(bwd_launch<Q, attention_bwd_query_sm90_kernel<Q>>(make_tile_grid(p, true, Q::kTileQ, kv_bytes)));
  return plan;
}

}  // namespace plab::ops::attention::sm90
