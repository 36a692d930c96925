// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/plan.cuh"
#include "ops/attention/sm80/bwd_deterministic_kernels.cuh"
#include "ops/attention/sm80/bwd_kernel.cuh"

// Grids, shared memory and workspace of the backward kernels on the portable path: one pass, or the
// deterministic two.
namespace plab::ops::attention::sm80 {

// Two stages if kBlocksPerSm blocks then still fit into an SM's shared memory, else one.
template <class Config>
int stages_that_fit() {
  const int two = Config::smem_bytes(2);
  const int per_sm = cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  return two <= cuda::max_shared_bytes() && Config::kBlocksPerSm * (two + 1024) <= per_sm ? 2 : 1;
}

// Floats of dq_accum; 0 where a block does not get the shared memory that one pass needs (d128 and d256 on
// sm_86 and sm_89).
template <class Config>
int64_t accum_floats(const Problem& p) {
  if (Config::smem_bytes(1) > cuda::max_shared_bytes()) return 0;
  return int64_t{p.heads} * (p.cu_seqlens_q ? 1 : p.batch) * accum_tiles<Config>(p) * Config::kTileQ *
         Config::kHeadDim;
}

template <class Config>
void clear_dq_accum(const KernelLaunch<BwdParams>&, const BwdParams& params, cudaStream_t stream) {
  const auto bytes = static_cast<size_t>(accum_floats<Config>(params.problem)) * sizeof(float);
  PLAB_CUDA_CHECK(cudaMemsetAsync(params.dq_accum, 0, bytes, stream));
}

template <class Config, bool kRemap>
void launch_bwd(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_kernel(attention_bwd_sum_sm80_kernel<Config, kRemap>, how, stream, params, how.tiles, how.stages);
}

template <class Config>
void launch_bwd_postprocess(const KernelLaunch<BwdParams>& how, const BwdParams& params,
                            cudaStream_t stream) {
  launch_kernel(attention_bwd_sum_rows_sm80_kernel<Config>, how, stream, params, how.tiles);
}

// One pass over the key tiles. The plan is empty where that is not possible: deterministic mode, or too little
// shared memory.
template <class Config>
BwdPlan plan_one_pass(const BwdParams& params) {
  const Problem& p = params.problem;
  BwdPlan plan;
  plan.workspace.dq_accum_floats = params.deterministic ? 0 : accum_floats<Config>(p);
  if (plan.workspace.dq_accum_floats == 0) return plan;
  const int sequences = p.cu_seqlens_q ? p.batch : 1;  // that share q_len
  TileGrid keys = make_tile_grid(p, false, Config::kTileKv,
                                 p.q_len / sequences * p.head_dim * 8 * (p.heads / p.kv_heads));
  // Under a causal mask the first key tiles have the most work. If there are few blocks, those tiles start
  // first across all heads.
  if (p.window_right >= 0 && blocks(keys) < 8 * cuda::sm_count()) keys.section = keys.groups;
  const bool remap = p.softcap > 0 || !(p.scale > 0);  // as ScoreMap's
  const int stages = stages_that_fit<Config>();
  plan.add({clear_dq_accum<Config>, 1, 1, 0});  // a memset
  plan.add({remap ? launch_bwd<Config, true> : launch_bwd<Config, false>, blocks(keys), Config::kThreads,
            Config::smem_bytes(stages), keys, stages});
  const TileGrid rows = make_tile_grid(p, true, Config::kTileQ, p.q_len * p.head_dim * 4);
  plan.add({launch_bwd_postprocess<Config>, blocks(rows), Config::kThreads, 0, rows});
  return plan;
}

template <void (*kKernel)(BwdParams, TileGrid, int)>
void launch_bwd_deterministic(const KernelLaunch<BwdParams>& how, const BwdParams& params,
                              cudaStream_t stream) {
  launch_kernel(kKernel, how, stream, params, how.tiles, how.stages);
}

template <class Config, void (*kKernel)(BwdParams, TileGrid, int)>
KernelLaunch<BwdParams> deterministic_launch(const Problem& p, bool own_queries) {
  const int64_t other = (own_queries ? p.k_len : p.q_len) / (p.cu_seqlens_q ? p.batch : 1);
  const TileGrid tiles =
      make_tile_grid(p, own_queries, own_queries ? Config::kTileQ : Config::kTileKv, other * p.head_dim * 4);
  // With cu_seqlens the number of tiles is an upper bound, which is not 0 even without a row.
  const int64_t count = (own_queries ? p.q_len : p.k_len) > 0 ? blocks(tiles) : 0;
  const int stages = stages_that_fit<Config>();
  return {launch_bwd_deterministic<kKernel>, count, Config::kThreads,
          Config::smem_bytes(stages),        tiles, stages};
}

template <class Config>
KernelLaunch<BwdParams> kv_launch(const BwdParams& params) {
  return deterministic_launch<Config, attention_bwd_key_sm80_kernel<Config>>(params.problem, false);
}

template <class Config>
KernelLaunch<BwdParams> q_launch(const BwdParams& params) {
  return deterministic_launch<Config, attention_bwd_query_sm80_kernel<Config>>(params.problem, true);
}

}  // namespace plab::ops::attention::sm80
