// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/bwd_query.cuh"

namespace plab::ops::attention::sm90 {

template <class Element_>
struct BwdWideConfig {
  using Element = Element_;
  static constexpr int kHeadDim = 256, kTileKv = 64, kTileQ = 64, kStages = 2;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = 24, kConsumerRegs = 240;
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2;
  static constexpr int kStatistics = 2 * kTileQ * 4;
  static constexpr int kSmemBytes = 2 * kBytesKv + 2 * kStages * kBytesQ + kStages * kStatistics + 256;
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed Hopper's 227 KB per block");
};

// attention_bwd_wide_sm90: dK and dV of 64 keys of one head of up to 256 columns.
// Mapping   one block per key tile and key head. dK and dV are 128 accumulators a thread each, too many for
// one
//           warpgroup beside S and dP: so one warpgroup computes S^T and dV += P^T dO, the other S^T, dP^T
//           and dK += dS^T Q. S is computed twice, and in return the two never wait for each other.
// Bytes     per query tile 4 kTileQ D from L2                  Flops  10 B H Sq Sk D         Roof  compute
// Contract  attention.h, sm90::takes, fixed lengths, scale > 0 and no softcap.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_wide_sm90_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                                   const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kStages = Config::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t q_ring = v_tile + Config::kBytesKv, do_ring = q_ring + kStages * Config::kBytesQ;
  const uint32_t statistics = do_ring + kStages * Config::kBytesQ;
  const QueryBarriers<kStages> barriers(statistics + kStages * Config::kStatistics);

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  const QueryTiles<Config> queries(problem, tile);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    feed_queries<Config>(p, tile, queries, maps, barriers, k_tile, v_tile, q_ring, do_ring, statistics);
    return;
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const bool has_dv = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) == 1;
  const int thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int key = tile.row + 16 * (thread / 32) + lane / 4, pair = 2 * (lane % 4);  // the first key and query
  constexpr int kBoth = 1, kOwn = 2;                                                // named barriers
  const float factor = float(problem.scale) * kLog2e;
  float sum[kD / 2], s[kM / 2], dp[kM / 2];
  uint32_t operand[kM / 16][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) sum[i] = 0.f;

  Ring<kStages> ring;
  int m = queries.begin;
  if (queries.steps > 0) ptx::mbarrier_wait(barriers.kv_full, 0);
  // Waits for the step's tiles and starts S^T; gives them back once the products that read them are done.
  uint32_t q_tile, do_tile, stats;
  const auto begin_step = [&] {
    q_tile = q_ring + ring.stage * Config::kBytesQ;
    do_tile = do_ring + ring.stage * Config::kBytesQ;
    stats = statistics + ring.stage * Config::kStatistics;
    ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
    ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(s, k_tile, q_tile);
  };
  const auto end_step = [&] {
    ptx::wgmma_wait<0>();
    ptx::keep(sum);
    ptx::keep(operand);
    ptx::named_barrier_sync(kOwn + has_dv, kWarpgroup);  // all four warps have read the statistics
    if (thread == 0) {
      ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
      ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
    }
    ring.advance();
    if (++m == queries.end) m = queries.begin;
  };
  if (has_dv) {
    for (int step = 0; step < queries.steps; ++step) {
      begin_step();
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      probabilities(s, stats, pair, factor);
      if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, key, m * kM + pair);
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(operand[i], s, i);
      ptx::wgmma_fence();
      issue_nn<Element, kD, kM>(sum, operand, do_tile);
      end_step();
    }
  } else {
    for (int step = 0; step < queries.steps; ++step) {
      begin_step();
      ptx::wgmma_fence();
      issue_nt<Element, kM, kD, kN>(dp, v_tile, do_tile);
      ptx::wgmma_wait<1>();
      ptx::keep(s);
      probabilities(s, stats, pair, factor);
      if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, key, m * kM + pair);
      ptx::wgmma_wait_after<0>(all_of(s));
      ptx::keep(dp);
      slopes(dp, s, stats + kM * 4, pair);
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(operand[i], dp, i);
      ptx::wgmma_fence();
      issue_nn<Element, kD, kM>(sum, operand, q_tile);
      end_step();
    }
  }

  // Once both groups are here, nobody reads K's and V's tiles any more: they become the staging area.
  ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);
  const float scale = has_dv ? 1.f : float(problem.scale), scales[2] = {scale, scale};
  const uint32_t staging = has_dv ? v_tile : k_tile;
  const View& view = has_dv ? p.dv : p.dk;
  stage_rows_sm90<Element, kN, kD>(staging, 0, sum, scales);
  ptx::named_barrier_sync(kOwn + has_dv, kWarpgroup);
  store_rows_sm90<kN, kD>(row_pointer<Element>(view, tile.batch, tile.row, tile.head), view.row, staging, 0,
                          queries.keys, problem.head_dim);
}

template <class Config>
void launch_bwd_wide_config(const BwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const TileGrid grid =
      make_tile_grid(p, false, Config::kTileKv, p.q_len * p.head_dim * 4 * (p.heads / p.kv_heads));
  const BwdMaps maps = make_bwd_maps(params, Config::kTileQ, Config::kTileKv);
  const auto kernel = attention_bwd_wide_sm90_kernel<Config>;
  PLAB_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
  kernel<<<static_cast<unsigned>(blocks(grid)), Config::kThreads, Config::kSmemBytes, stream>>>(params, grid,
                                                                                                maps);
  PLAB_CHECK_LAUNCH();
}

}  // namespace plab::ops::attention::sm90
