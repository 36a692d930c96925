// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/bwd_kernel.cuh"
#include "ops/attention/sm90/bwd_postprocess.cuh"
#include "ops/attention/sm90/bwd_preprocess.cuh"

// The backward up to head_dim 128: three kernels, their grids and their workspace. Each starts while the one before it
// ends, and waits for that where it needs its results.
namespace plab::ops::attention::sm90 {

template <class Config>
void launch_bwd_preprocess(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_kernel(attention_bwd_sm90_prepare_kernel<Config>, how, stream, params, how.tiles);
}

template <class Config>
void launch_bwd(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_early(attention_bwd_sm90_kernel<Config>, how, stream, params, KeyGrid{how.tiles, how.split},
               make_bwd_maps(params, Config::kTileQ, Config::kTileKv));
}

template <class Config>
void launch_bwd_postprocess(const KernelLaunch<BwdParams>& how, const BwdParams& params,
                            cudaStream_t stream) {
  launch_early(attention_bwd_sm90_finish_kernel<Config>, how, stream, params,
               make_query_grid<Config>(params.problem), KeyGrid{how.tiles, how.split});
}

template <class Config>
BwdPlan plan_bwd_config(const BwdParams& params) {
  const Problem& p = params.problem;
  const TileGrid queries = make_query_grid<Config>(p);
  const KeyGrid keys = make_schedule<Config>(params);
  BwdPlan plan;
  plan.workspace.dq_accum_floats = BwdWorkspace<Config>(params).floats(keys);
  plan.add({launch_bwd_preprocess<Config>, blocks(queries), kWarpgroup, 0, queries});
  if (blocks(keys) > 0) {
    const int64_t count = cuda::smaller<int64_t>(keys.whole + pieces(keys), cuda::sm_count());
    plan.add({launch_bwd<Config>, count, Config::kThreads, Config::kSmemBytes, keys, 0, keys});
  }
  const int64_t count = blocks(queries) + int64_t{cut_tiles(keys)} * kGatherBlocks;
  plan.add({launch_bwd_postprocess<Config>, count, 2 * kWarpgroup, 0, keys, 0, keys});
  return plan;
}

}  // namespace plab::ops::attention::sm90
