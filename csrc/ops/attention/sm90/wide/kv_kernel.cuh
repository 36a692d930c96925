// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/ptx/dependent_launch.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/bwd_softmax.cuh"
#include "ops/attention/sm90/bwd_tile_scheduler.cuh"
#include "ops/attention/sm90/epilogue.cuh"
#include "ops/attention/sm90/gemm.cuh"

// The backward for compute capability 9.0 above head_dim 128: dK and dV. q_kernel.cuh computes dQ.
namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, int kHeadDimV_, int kTileQ_, int kStages_, bool kSoftcap_,
          bool kAhead_ = false>
struct BwdKvConfig {
  using Element = Element_;
  static constexpr bool kSoftcap = kSoftcap_;  // P comes with the slope of the capped scores
  static constexpr bool kAhead = kAhead_;      // dV and dK of a tile run under the arithmetic of the next
  static_assert(!(kAhead && kSoftcap), "softcap has no registers left for it");
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_, kTileKv = 64, kTileQ = kTileQ_,
                       kStages = kStages_;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = kHeadDim == 256 ? 24 : 56,
                       kConsumerRegs = kHeadDim == 256 ? 240 : 224;
  static constexpr int kBytesK = kTileKv * kHeadDim * 2, kBytesV = kTileKv * kHeadDimV * 2;
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesDo = kTileQ * kHeadDimV * 2;
  static constexpr int kBytesP = kTileKv * kTileQ * 2 * (kSoftcap ? 2 : 1);
  static constexpr int kStatistics = 2 * kTileQ * 4;
  static constexpr int kSmemBytes =
      kBytesK + kBytesV + kStages * (kBytesQ + kBytesDo) + 2 * kBytesP + kStages * kStatistics + 256;
  static_assert(kHeadDimV <= kHeadDim, "one warpgroup holds dK, the other dV in as many registers");
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed the 227 KB of a block");
};

template <int kStages, int kStagesDo = kStages>
struct QueryBarriers {
  uint32_t kv_full, q_full, do_full, q_empty, do_empty;
  __device__ __forceinline__ explicit QueryBarriers(uint32_t at)
      : kv_full(at),
        q_full(at + 8),
        do_full(q_full + 8 * kStages),
        q_empty(do_full + 8 * kStagesDo),
        do_empty(q_empty + 8 * kStages) {}
  __device__ __forceinline__ void init() const {
    ptx::mbarrier_init(kv_full, 2);  // K and V
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1 + 32);  // the copy, and the lanes that bring the statistics
      ptx::mbarrier_init(q_empty + 8 * i, 256);    // every consumer thread: each reads the statistics itself
    }
    for (int i = 0; i < kStagesDo; ++i) {
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(do_empty + 8 * i, 2);  // both consumer warpgroups
    }
    ptx::fence_barrier_init();
  }
};

// The producer warpgroup's work: thread 0 loads K and V once, then one query tile after the other. The lanes of
// the second warp load LSE log2(e) and delta of the tile's queries.
template <class Config, int kStages, int kStagesDo>
__device__ __forceinline__ void load_queries(const BwdParams& p, const Tile& tile,
                                             const QueryTiles<Config>& queries, const BwdMaps& maps,
                                             const QueryBarriers<kStages, kStagesDo>& barriers,
                                             uint32_t k_tile, uint32_t v_tile, uint32_t q_ring,
                                             uint32_t do_ring, uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV, kM = Config::kTileQ, kN = Config::kTileKv;
  if (threadIdx.x == 0 && queries.steps > 0) {
    const RowBox keys = row_box<kN>(p.problem, tile, tile.k_row, tile.k_len, tile.row);
    tma_load_tile<kN, kD>(k_tile, maps.k, barriers.kv_full, keys.row, tile.head, keys.batch);
    tma_load_tile<kN, kDv>(v_tile, maps.v, barriers.kv_full, keys.row, tile.head, keys.batch);
    Ring<kStages> ring;
    Ring<kStagesDo> ring_do;
    int head = tile.head * queries.heads, m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      const RowBox rows = row_box<kM>(p.problem, tile, tile.q_row, tile.q_len, m * kM);
      ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
      tma_load_tile<kM, kD>(q_ring + ring.stage * Config::kBytesQ, maps.q, barriers.q_full + 8 * ring.stage,
                            rows.row, head, rows.batch);
      ptx::mbarrier_wait(barriers.do_empty + 8 * ring_do.stage, ring_do.parity ^ 1);
      tma_load_tile<kM, kDv>(do_ring + ring_do.stage * Config::kBytesDo, maps.dout,
                             barriers.do_full + 8 * ring_do.stage, rows.row, head, rows.batch);
      ring.advance();
      ring_do.advance();
      if (++m == queries.end) {
        m = queries.begin;
        ++head;
      }
    }
  } else if (threadIdx.x >= 32 && threadIdx.x < 64) {
    const int lane = int(threadIdx.x) - 32;
    ptx::wait_for_previous_grid();  // which computes the statistics
    ptx::launch_dependents();       // dQ's kernel, once every block has come here
    Ring<kStages> ring;
    int head = tile.head * queries.heads, m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t row = tile.batch * p.rows.batch + head * p.rows.head + tile.q_row + m * kM;
      ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll
      for (int i = lane; i < kM; i += 32) {
        const bool exists = m * kM + i < tile.q_len;  // a query that does not exist has probability 2^-inf
        const float lse = exists ? static_cast<const float*>(p.lse_log2)[row + i] : INFINITY;
        const float delta = exists ? static_cast<const float*>(p.delta)[row + i] : 0.f;
        const uint32_t at = statistics + ring.stage * Config::kStatistics + i * 4;
        ptx::store_shared(at, __float_as_uint(lse));
        ptx::store_shared(at + kM * 4, __float_as_uint(delta));
      }
      ptx::mbarrier_arrive(barriers.q_full + 8 * ring.stage);
      ring.advance();
      if (++m == queries.end) {
        m = queries.begin;
        ++head;
      }
    }
  }
}

// attention_bwd_wide_sm90: dK and dV of 64 keys of one head of up to 256 columns.
// Mapping   one block per key tile and key head. dK and dV take up to 128 accumulators per thread each, too many for
//           one warpgroup that also holds S and dP. So one warpgroup computes S^T, P^T and dV += P^T dO. It
//           passes its P^T, packed, thread by thread to the other, which computes dP^T, dS^T and
//           dK += dS^T Q. The arithmetic of one warpgroup overlaps with the products of the other.
// Bytes     per query tile 4 kTileQ D from L2                  Flops  8 B H Sq Sk D         Roof  compute
// Contract  attention.h, sm90/launch.h, scale > 0.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_wide_sm90_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                                   const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV, kM = Config::kTileQ, kN = Config::kTileKv,
                kStages = Config::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesK;
  const uint32_t q_ring = v_tile + Config::kBytesV, do_ring = q_ring + kStages * Config::kBytesQ;
  const uint32_t p_tiles = do_ring + kStages * Config::kBytesDo, statistics = p_tiles + 2 * Config::kBytesP;
  const QueryBarriers<kStages> barriers(statistics + kStages * Config::kStatistics);

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  const QueryTiles<Config> queries(problem, tile);
  if (!tile.valid) return;
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    load_queries<Config>(p, tile, queries, maps, barriers, k_tile, v_tile, q_ring, do_ring, statistics);
    return;
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const bool has_dv = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) == 1;
  const int thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int key = tile.row + 16 * (thread / 32) + lane / 4, pair = 2 * (lane % 4);  // the first key and query
  constexpr int kBoth = 1, kOwn = 2, kFull = 4,
                kEmpty = 6;      // named barriers; kFull and kEmpty one per P tile
  float sum[kD / 2], s[kM / 2];  // dV and S^T, or dK and dP^T
  uint32_t operand[kM / 16][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) sum[i] = 0.f;

  Ring<kStages> ring;
  if (queries.steps > 0) ptx::mbarrier_wait(barriers.kv_full, 0);
  const auto pack = [&] {
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(operand[i], s, i);
  };
  if constexpr (Config::kAhead) {
    // Both warpgroups: the products of tile n with the other tensor's rows are issued before those that add tile
    // n - 1 to dV and dK, and these run while exponentials and slopes of tile n are computed.
    Ring<kStages> held;  // the tile that is still to be added
    const auto finish_held = [&](auto& gradient, float after) {
      ptx::wgmma_wait_after<0>(after);
      ptx::keep(gradient);
      ptx::keep(operand);
    };
    if (has_dv) {
      const float factor = float(problem.scale) * kLog2e;
      auto& dv = reinterpret_cast<float(&)[kDv / 2]>(sum);
      const auto add = [&] {
        ptx::mbarrier_wait(barriers.do_full + 8 * held.stage, held.parity);
        ptx::wgmma_fence();
        issue_nn<Element, kDv, kM>(dv, operand, do_ring + held.stage * Config::kBytesDo);
      };
      const auto end = [&](float after) {
        finish_held(dv, after);
        if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * held.stage);
        held.advance();
      };
      int m = queries.begin;
      const auto one = [&](auto first, int step) {
        constexpr int kHeld = !decltype(first)::value;
        const uint32_t p_tile = p_tiles + (step & 1) * Config::kBytesP + thread * 16;
        ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
        ptx::wgmma_fence();
        issue_nt<Element, kM, kD, kN>(s, k_tile, q_ring + ring.stage * Config::kBytesQ);
        if constexpr (kHeld) add();
        ptx::wgmma_wait<kHeld>();
        ptx::keep(s);
        probabilities(s, statistics + ring.stage * Config::kStatistics, pair, factor);
        ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
        if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, key, m * kM + pair);
        if (++m == queries.end) m = queries.begin;
        if constexpr (kHeld) end(all_of(s));
        pack();
        if (step >= 2) ptx::named_barrier_sync(kEmpty + (step & 1), 2 * kWarpgroup);
#pragma unroll
        for (int i = 0; i < kM / 16; ++i)
          ptx::store_shared_16(p_tile + i * kWarpgroup * 16,
                               make_uint4(operand[i][0], operand[i][1], operand[i][2], operand[i][3]));
        ptx::named_barrier_arrive(kFull + (step & 1), 2 * kWarpgroup);
        ring.advance();
      };
      if (queries.steps > 0) {
        one(std::true_type{}, 0);
        for (int step = 1; step < queries.steps; ++step) one(std::false_type{}, step);
        add();
        end(0.f);
      }
    } else {
      uint32_t probability[kM / 16][4];
      const auto add = [&] {
        ptx::wgmma_fence();
        issue_nn<Element, kD, kM>(sum, operand, q_ring + held.stage * Config::kBytesQ);
      };
      const auto end = [&](float after) {
        finish_held(sum, after);
        ptx::mbarrier_arrive(barriers.q_empty + 8 * held.stage);
        held.advance();
      };
      const auto one = [&](auto first, int step) {
        constexpr int kHeld = !decltype(first)::value;
        const uint32_t p_tile = p_tiles + (step & 1) * Config::kBytesP + thread * 16;
        ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
        ptx::wgmma_fence();
        issue_nt<Element, kM, kDv, kN>(s, v_tile, do_ring + ring.stage * Config::kBytesDo);
        if constexpr (kHeld) add();
        ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
        ptx::named_barrier_sync(kFull + (step & 1), 2 * kWarpgroup);
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
          const uint4 packed = ptx::load_shared_16(p_tile + i * kWarpgroup * 16);
          probability[i][0] = packed.x, probability[i][1] = packed.y;
          probability[i][2] = packed.z, probability[i][3] = packed.w;
        }
        if (step + 2 < queries.steps) ptx::named_barrier_arrive(kEmpty + (step & 1), 2 * kWarpgroup);
        ptx::wgmma_wait<kHeld>();
        ptx::keep(s);
        if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
        slopes_packed<Element>(s, probability, statistics + ring.stage * Config::kStatistics + kM * 4, pair);
        if constexpr (kHeld) end(fabsf(all_of(s)));
        pack();
        ring.advance();
      };
      if (queries.steps > 0) {
        one(std::true_type{}, 0);
        for (int step = 1; step < queries.steps; ++step) one(std::false_type{}, step);
        add();
        end(0.f);
      }
    }
  } else if (has_dv) {
    const float factor = float(problem.scale) * kLog2e;
    const ScoreMap map(problem);
    [[maybe_unused]] uint32_t bend[kM / 16][4];
    auto& dv = reinterpret_cast<float(&)[kDv / 2]>(sum);
    int m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      const uint32_t p_tile = p_tiles + (step & 1) * Config::kBytesP + thread * 16;
      ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
      ptx::wgmma_fence();
      issue_nt<Element, kM, kD, kN>(s, k_tile, q_ring + ring.stage * Config::kBytesQ);
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      if constexpr (Config::kSoftcap)
        capped_probabilities<Element>(s, bend, statistics + ring.stage * Config::kStatistics, pair, map);
      else
        probabilities(s, statistics + ring.stage * Config::kStatistics, pair, factor);
      if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, key, m * kM + pair);
      if (++m == queries.end) m = queries.begin;
      pack();
      ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
      ptx::wgmma_fence();
      issue_nn<Element, kDv, kM>(dv, operand, do_ring + ring.stage * Config::kBytesDo);
      if (step >= 2) ptx::named_barrier_sync(kEmpty + (step & 1), 2 * kWarpgroup);
#pragma unroll
      for (int i = 0; i < kM / 16; ++i) {
        ptx::store_shared_16(p_tile + i * kWarpgroup * 16,
                             make_uint4(operand[i][0], operand[i][1], operand[i][2], operand[i][3]));
        if constexpr (Config::kSoftcap)
          ptx::store_shared_16(p_tile + (kM / 16 + i) * kWarpgroup * 16,
                               make_uint4(bend[i][0], bend[i][1], bend[i][2], bend[i][3]));
      }
      // Arriving is enough, because kEmpty protects the tile. Waiting here too would need the same barrier
      // instruction in both groups, and the other group's instruction is a different one.
      ptx::named_barrier_arrive(kFull + (step & 1), 2 * kWarpgroup);
      ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
      ptx::wgmma_wait<0>();
      ptx::keep(dv);
      ptx::keep(operand);
      if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
      ring.advance();
    }
  } else {
    for (int step = 0; step < queries.steps; ++step) {
      const uint32_t p_tile = p_tiles + (step & 1) * Config::kBytesP + thread * 16;
      ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
      ptx::wgmma_fence();
      issue_nt<Element, kM, kDv, kN>(s, v_tile, do_ring + ring.stage * Config::kBytesDo);
      ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
      ptx::named_barrier_sync(kFull + (step & 1), 2 * kWarpgroup);
      [[maybe_unused]] uint32_t bend[kM / 16][4];
      const auto fetch = [&](uint32_t(&to)[kM / 16][4], uint32_t from) {
#pragma unroll
        for (int i = 0; i < kM / 16; ++i) {
          const uint4 packed = ptx::load_shared_16(from + i * kWarpgroup * 16);
          to[i][0] = packed.x, to[i][1] = packed.y, to[i][2] = packed.z, to[i][3] = packed.w;
        }
      };
      fetch(operand, p_tile);
      if constexpr (Config::kSoftcap) fetch(bend, p_tile + kM / 16 * kWarpgroup * 16);
      if (step + 2 < queries.steps) ptx::named_barrier_arrive(kEmpty + (step & 1), 2 * kWarpgroup);
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
      slopes_packed<Element>(s, operand, statistics + ring.stage * Config::kStatistics + kM * 4, pair);
      if constexpr (Config::kSoftcap) multiply_packed<Element>(s, bend);
      pack();
      ptx::wgmma_fence();
      issue_nn<Element, kD, kM>(sum, operand, q_ring + ring.stage * Config::kBytesQ);
      ptx::wgmma_wait<0>();
      ptx::keep(sum);
      ptx::keep(operand);
      ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
      ring.advance();
    }
  }

  // After this barrier no warp reads the tiles of K and V: they become the staging area.
  ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);
  if (has_dv) {
    const float scales[2] = {1.f, 1.f};
    stage_rows<Element, kN, kDv>(v_tile, 0, reinterpret_cast<float(&)[kDv / 2]>(sum), scales);
    ptx::named_barrier_sync(kOwn, kWarpgroup);
    store_rows<kN, kDv>(row_pointer<Element>(p.dv, tile.batch, tile.k_row + tile.row, tile.head), p.dv.row,
                        v_tile, 0, queries.keys, problem.head_dim_v);
  } else {
    const float scale = float(problem.scale), scales[2] = {scale, scale};
    stage_rows<Element, kN, kD>(k_tile, 0, sum, scales);
    ptx::named_barrier_sync(kOwn + 1, kWarpgroup);
    store_rows<kN, kD>(row_pointer<Element>(p.dk, tile.batch, tile.k_row + tile.row, tile.head), p.dk.row,
                       k_tile, 0, queries.keys, problem.head_dim);
  }
}

}  // namespace plab::ops::attention::sm90
