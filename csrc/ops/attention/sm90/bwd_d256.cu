// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/bwd_kv_kernel.cuh"
#include "ops/attention/sm90/bwd_q_kernel.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

template <class Config, void (*kKernel)(BwdParams, TileGrid, BwdMaps)>
void launch_bwd(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_kernel(kKernel, how, stream, params, how.tiles,
                make_bwd_maps(params, Config::kTileQ, Config::kTileKv));
}

template <class Config, void (*kKernel)(BwdParams, TileGrid, BwdMaps)>
KernelLaunch<BwdParams> bwd_launch(const TileGrid& tiles) {
  return {launch_bwd<Config, kKernel>, blocks(tiles), Config::kThreads, Config::kSmemBytes, tiles};
}

template <class Element, bool kSoftcap>
BwdPlan plan(const BwdParams& params) {
  const Problem& p = params.problem;
  using Kv = BwdKvConfig<Element, 256, 256, 64, 2, kSoftcap>;
  using Q = BwdQConfig<Element, 256, 256, 64, kSoftcap>;
  const int64_t kv_bytes = p.k_len / (p.cu_seqlens_k ? p.batch : 1) * p.head_dim * 4 * p.kv_heads / p.heads;
  BwdPlan plan;
  plan.add(bwd_launch<Kv, attention_bwd_wide_sm90_kernel<Kv>>(make_key_grid<Kv>(p)));
  plan.add(bwd_launch<Q, attention_bwd_query_sm90_kernel<Q>>(make_tile_grid(p, true, Q::kTileQ, kv_bytes)));
  return plan;
}

template <class Element>
BwdPlan plan(const BwdParams& params) {
  return params.problem.softcap > 0 ? plan<Element, true>(params) : plan<Element, false>(params);
}

}  // namespace

BwdPlan plan_bwd_d256(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(params)
                                                          : plan<__half>(params);
}

}  // namespace plab::ops::attention::sm90
