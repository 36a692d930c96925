// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/fwd_kernel.cuh"

// The grid of the forward, its tensor maps, and its launch.
namespace plab::ops::attention::sm90 {

// Whether blocks take their tiles from a counter in global memory. Without a mask, tiles of 128 rows take equal
// time, and the counter would only cost its two microseconds.
inline bool counts_tiles(const Problem& p) {
  return p.cu_seqlens_q != nullptr || p.window_right >= 0 || p.widest() <= 64;
}

// Of the mean sequence, with cu_seqlens.
inline int64_t keys_per_sequence(const Problem& p) { return p.k_len / (p.cu_seqlens_k ? p.batch : 1); }

template <class Config>
void launch_fwd(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
  const auto map = [&](const View& view, int dim, int64_t rows, int64_t heads, int box) {
    return make_tensor_map(view, p.element, dim, rows, heads, batch, box);
  };
  const FwdMaps maps{map(params.q, p.head_dim, p.q_len, p.heads, Config::kTileQ),
                     map(params.k, p.head_dim, p.k_len, p.kv_heads, Config::kTileKv),
                     map(params.v, p.head_dim_v, p.k_len, p.kv_heads, Config::kTileKv),
                     map(params.out, p.head_dim_v, p.q_len, p.heads, 64)};
  const auto kernel = attention_fwd_sm90_kernel<Config>;
  PLAB_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes));
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(how.blocks));
  launch.blockDim = dim3(how.threads);
  launch.dynamicSmemBytes = how.shared_bytes;
  launch.stream = stream;
  // With equal lengths the previous kernel only clears the counter, and only the producers wait for it.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch.attrs = &early;
  launch.numAttrs = params.tile_counter != nullptr && p.cu_seqlens_q == nullptr ? 1 : 0;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, params, how.tiles, maps));
}

template <class Config>
FwdPlan plan_fwd_config(const Problem& p) {
  const int64_t kv_bytes = keys_per_sequence(p) * (p.head_dim + p.head_dim_v) * 2 * p.kv_heads / p.heads;
  TileGrid tiles = make_tile_grid(p, true, Config::kTileQ, kv_bytes);
  const int64_t count =
      cuda::smaller<int64_t>((blocks(tiles) + Config::kUnits - 1) / Config::kUnits, cuda::sm_count());
  FwdPlan plan;
  // With one tile for each unit at most there is nothing to balance, and a small call saves a launch.
  const bool one_each = p.cu_seqlens_q == nullptr && blocks(tiles) <= Config::kUnits * count;
  plan.workspace.tile_counter = counts_tiles(p) && !one_each;
  // Tiles of equal length: all tiles of a head run concurrently, because they share its keys.
  if (one_each)
    tiles.section = tiles.groups;
  else if (!tiles.last_first)
    tiles.section = 1;
  else if (!plan.workspace.tile_counter)
    tiles.section = even_section(tiles, Config::kUnits * count);
  plan.add({launch_fwd<Config>, count, Config::kThreads, Config::kSmemBytes, tiles});
  return plan;
}

template <int kHeadDim, int kTileQ, int kTileKv, bool kPingPong, int kUnits = 1, int kStages = 2,
          int kHeadDimV = kHeadDim>
FwdPlan plan_fwd_element(const Problem& p) {
  if (p.element == ElementType::kBFloat16)
    return plan_fwd_config<
        FwdConfig<__nv_bfloat16, kHeadDim, kTileQ, kTileKv, kPingPong, kUnits, kStages, kHeadDimV>>(p);
  return plan_fwd_config<FwdConfig<__half, kHeadDim, kTileQ, kTileKv, kPingPong, kUnits, kStages, kHeadDimV>>(
      p);
}

}  // namespace plab::ops::attention::sm90
