// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "ops/attention/sm90/bwd_parts.cuh"
#include "ops/attention/sm90/bwd_sum.cuh"

namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, bool kSumDq_, int kTileQ_ = 64, bool kAhead_ = true>
struct BwdConfig {
  using Element = Element_;
  static constexpr bool kSumDq = kSumDq_;  // false: another kernel computes dQ
  static constexpr bool kAhead = kAhead_;  // the next tile's scores are computed under this tile's products
  static constexpr int kHeadDim = kHeadDim_, kTileKv = 128, kTileQ = kTileQ_, kStages = kAhead ? 3 : 2,
                       kStagesDo = 2;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = kHeadDim == 128 ? 24 : 40,
                       kConsumerRegs = kHeadDim == 128 ? 240 : 232;
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2,
                       kBytesDs = kTileKv * kTileQ * 2;
  static constexpr int kStatistics = 2 * kTileQ * 4;  // LSE·log2e and delta of a stage's queries
  static constexpr int kSmemBytes =
      2 * kBytesKv + (kStages + kStagesDo) * kBytesQ + 2 * kBytesDs + kStages * kStatistics + 256;
  // A warpgroup's share of dQ: half of the columns of 64 queries, or all columns of half of 128 queries.
  static constexpr int kSumColumns = kTileQ == 64 ? kHeadDim / 2 : kHeadDim, kSumRegs = kSumColumns / 2;
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed Hopper's 227 KB per block");
};

// attention_bwd_sm90: dK and dV of 128 keys of one head, and what they add to dQ, on Hopper's wgmma and TMA.
// Mapping   one block per key tile and key head. A producer warpgroup streams the query tiles of every query
//           head that shares the key head; two consumer warpgroups own 64 keys each. S^T = K Q^T and
//           dP^T = V dO^T put keys on the rows, so P^T and dS^T are register operands of dV += P^T dO and
//           dK += dS^T Q. dS^T also goes to shared memory, where both warpgroups read it as the (transposed)
//           A operand of dQ = dS K, half of the columns (or of 128 queries) each; dQ is added to an fp32 sum
//           in L2. kAhead computes the next tile's scores and exponentials under this tile's products.
// Bytes     per query tile 4 kTileQ D from L2 and 4 kTileQ D of fp32 additions       Flops  10 B H Sq Sk D
// Roof      shared memory: about 350 KB per tile pair at d128, 2700 cycles, against 2560 of the tensor cores.
// Contract  attention.h, sm90::takes, scale > 0 and no softcap; dq_sum zeroed where kSumDq.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_sm90_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                              const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kStages = Config::kStages,
                kStagesDo = Config::kStagesDo;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t q_ring = v_tile + Config::kBytesKv, do_ring = q_ring + kStages * Config::kBytesQ;
  const uint32_t ds_tiles = do_ring + kStagesDo * Config::kBytesQ,
                 statistics = ds_tiles + 2 * Config::kBytesDs;
  const uint32_t ds_full = statistics + kStages * Config::kStatistics;  // one barrier per tile of dS^T
  const QueryBarriers<kStages, kStagesDo> barriers(ds_full + 16);

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  const QueryTiles<Config> queries(problem, tile);
  if (!tile.valid) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) ptx::mbarrier_init(ds_full + 8 * i, 8);  // every consumer warp
    barriers.init();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    feed_queries<Config>(p, tile, queries, maps, barriers, k_tile, v_tile, q_ring, do_ring, statistics);
    return;
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) - 1,
            thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int row0 = 64 * group + 16 * (thread / 32) + lane / 4,
            pair = 2 * (lane % 4);  // this thread's first key and query
  const uint32_t k_rows = k_tile + 64 * 128 * group, v_rows = v_tile + 64 * 128 * group;
  constexpr int kBoth = 1, kOwn = 2;  // named barriers

  const float factor = float(problem.scale) * kLog2e;
  float dk[kD / 2], dv[kD / 2], s[kM / 2];
  uint32_t probability[kM / 16][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.f;

  Ring<kStages> ring;
  Ring<kStagesDo> ring_do;
  int head = tile.head * queries.heads, m = queries.begin;
  // Row and swizzled piece that this lane addresses when a fragment of dS^T is stored.
  const uint32_t ds_lane =
      ds_tiles + (64 * group + 16 * (thread / 32) + lane % 16) * 128 + ((lane / 16 ^ (lane & 7)) << 4);

  const auto issue_scores = [&](const Ring<kStages>& at) {
    ptx::mbarrier_wait(barriers.q_full + 8 * at.stage, at.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(s, k_rows, q_ring + at.stage * Config::kBytesQ);
  };
  // P of the scores in s, packed.
  const auto soften = [&](const Ring<kStages>& at, int tile_q) {
    ptx::keep(s);
    probabilities(s, statistics + at.stage * Config::kStatistics, pair, factor);
    if (queries.edge(tile, tile_q))
      clear_unseen(s, queries.visible, tile, tile.row + row0, tile_q * kM + pair);
  };
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(probability[i], s, i);
  };
  const auto step_body = [&](auto last, int step) {
    constexpr bool kNext = Config::kAhead && !decltype(last)::value;
    const uint32_t q_tile = q_ring + ring.stage * Config::kBytesQ,
                   do_tile = do_ring + ring_do.stage * Config::kBytesQ;
    const uint32_t ds_offset = (step & 1) * Config::kBytesDs,
                   stats = statistics + ring.stage * Config::kStatistics;
    Ring<kStages> next = ring;
    next.advance();
    const int this_m = m, this_head = head;
    if (++m == queries.end) {
      m = queries.begin;
      ++head;
    }
    float dp[kM / 2], dq[Config::kSumRegs];
    uint32_t slope[kM / 16][4];
    if constexpr (!Config::kAhead) issue_scores(ring);
    ptx::mbarrier_wait(barriers.do_full + 8 * ring_do.stage, ring_do.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(dp, v_rows, do_tile);
    if constexpr (!Config::kAhead) {
      ptx::wgmma_wait<1>();
      soften(ring, this_m);
      pack();
      ptx::wgmma_fence();
    }
    issue_nn<Element, kD, kM>(dv, probability, do_tile);
    ptx::wgmma_wait<1>();
    ptx::keep(dp);
    slopes_packed<Element>(dp, probability, stats + kM * 4, pair);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(slope[i], dp, i);
    if constexpr (Config::kSumDq) {
      // dSᵀ, keys by queries, in chunks of 64 queries.
#pragma unroll
      for (int i = 0; i < kM / 16; ++i)
        ptx::stmatrix_x4((ds_lane + ds_offset + (i / 4) * kN * 128) ^ ((i % 4) << 5), slope[i]);
      ptx::fence_proxy_async();
      if constexpr (Config::kAhead) {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(ds_full + 8 * (step & 1));
      } else {
        ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);
      }
    }
    if constexpr (kNext) issue_scores(next);
    if constexpr (Config::kAhead) {
      ptx::wgmma_wait<kNext ? 1 : 0>();  // dV
      ptx::keep(dv);
      ptx::keep(probability);
      if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring_do.stage);
    }
    if constexpr (Config::kSumDq) {
      const uint32_t chunk = kM == 128 ? group * kN * 128 : 0;  // this warpgroup's queries
      const uint32_t columns = kM == 128 ? 0 : kD == 128 ? group * kN * 128 : group * 64;
      const uint64_t a = ptx::descriptor_mn_major(ds_tiles + ds_offset + chunk, kN * 128),
                     b = ptx::descriptor_mn_major(k_tile + columns, kN * 128);
      if constexpr (Config::kAhead) ptx::mbarrier_wait(ds_full + 8 * (step & 1), (step >> 1) & 1);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < kN / 16; ++i)
        ptx::Wgmma<Element, Config::kSumColumns, true, true>::ss(dq, ptx::descriptor_step(a, i * 2048),
                                                                 ptx::descriptor_step(b, i * 2048), i > 0);
      ptx::wgmma_commit();
    }
    ptx::wgmma_fence();
    constexpr bool kSlopesFromShared = Config::kSumDq && Config::kAhead;  // in registers they are too many
    if constexpr (kSlopesFromShared) {
      const uint64_t a = ptx::descriptor_k_major(ds_tiles + ds_offset + 64 * 128 * group),
                     b = ptx::descriptor_mn_major(q_tile, kM * 128);
#pragma unroll
      for (int k = 0; k < kM / 16; ++k)
        ptx::Wgmma<Element, kD, false, true>::ss(dk, ptx::descriptor_step(a, depth_step<kN>(0, k)),
                                                 ptx::descriptor_step(b, k * 2048), 1);
      ptx::wgmma_commit();
    } else {
      issue_nn<Element, kD, kM>(dk, slope, q_tile);
    }

    if constexpr (kNext) {
      ptx::wgmma_wait<Config::kSumDq ? 2 : 1>();
      soften(next, m);
    }
    if constexpr (!Config::kAhead) {
      ptx::wgmma_wait<1>();
      ptx::keep(dv);
      ptx::keep(probability);
      if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring_do.stage);
    }
    if constexpr (Config::kSumDq) {
      ptx::wgmma_wait<1>();
      ptx::keep(dq);
      const int64_t sum_tile = first_sum_tile<Config>(problem, tile, this_head) + this_m;
      float* sum = p.dq_sum + dq_sum_offset<Config>(sum_tile, group, 0, thread);
#pragma unroll
      for (int i = 0; i < Config::kSumRegs; i += 4)
        ptx::reduce_add_4(sum + i * kWarpgroup, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
    if constexpr (kNext) pack();
    ptx::wgmma_wait<0>();
    ptx::keep(dk);
    if constexpr (!kSlopesFromShared) ptx::keep(slope);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
    ring = next;
    ring_do.advance();
  };

  if (queries.steps > 0) {
    ptx::mbarrier_wait(barriers.kv_full, 0);
    if constexpr (Config::kAhead) {
      issue_scores(ring);
      ptx::wgmma_wait<0>();
      soften(ring, m);
      pack();
      for (int step = 0; step < queries.steps - 1; ++step) step_body(std::false_type{}, step);
      step_body(std::true_type{}, queries.steps - 1);
    } else {
      for (int step = 0; step < queries.steps; ++step) step_body(std::true_type{}, step);
    }
  }

  // Every product has been waited for by both groups once they meet here; K's and V's tiles become the
  // staging area.
  ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);
  const float scale = float(problem.scale), scales[2] = {scale, scale}, ones[2] = {1.f, 1.f};
  stage_rows_sm90<Element, kN, kD>(k_tile, 64 * group, dk, scales);
  stage_rows_sm90<Element, kN, kD>(v_tile, 64 * group, dv, ones);
  ptx::named_barrier_sync(kOwn + group, kWarpgroup);
  store_rows_sm90<kN, kD>(row_pointer<Element>(p.dk, tile.batch, tile.k_row + tile.row, tile.head), p.dk.row,
                          k_tile, 64 * group, queries.keys, problem.head_dim);
  store_rows_sm90<kN, kD>(row_pointer<Element>(p.dv, tile.batch, tile.k_row + tile.row, tile.head), p.dv.row,
                          v_tile, 64 * group, queries.keys, problem.head_dim);
}

template <class Config>
void launch_bwd_config(const BwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const TileGrid grid = make_key_grid<Config>(p);
  if constexpr (Config::kSumDq) {
    const int64_t tiles = int64_t{p.cu_seqlens_q ? 1 : p.batch} * p.heads * sum_tiles<Config>(p);
    PLAB_CUDA_CHECK(cudaMemsetAsync(
        params.dq_sum, 0, static_cast<size_t>(tiles) * Config::kTileQ * Config::kHeadDim * 4, stream));
  }
  if (blocks(grid) > 0) {
    const BwdMaps maps = make_bwd_maps(params, Config::kTileQ, Config::kTileKv);
    const auto kernel = attention_bwd_sm90_kernel<Config>;
    PLAB_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
    kernel<<<static_cast<unsigned>(blocks(grid)), Config::kThreads, Config::kSmemBytes, stream>>>(params,
                                                                                                  grid, maps);
    PLAB_CHECK_LAUNCH();
  }
  if constexpr (Config::kSumDq) {
    const TileGrid rows = make_tile_grid(p, true, Config::kTileQ, p.q_len * p.head_dim * 4);
    attention_bwd_sm90_finish_kernel<Config>
        <<<static_cast<unsigned>(blocks(rows)), 2 * kWarpgroup, 0, stream>>>(params, rows);
    PLAB_CHECK_LAUNCH();
  }
}

}  // namespace plab::ops::attention::sm90
