// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "ops/attention/sm90/bwd_workspace.cuh"
#include "ops/attention/sm90/tma.cuh"

// The producer warp of the backward up to head_dim 128.
namespace plab::ops::attention::sm90 {

template <int kStages>
struct StreamBarriers {
  uint32_t k_full, v_full, kv_empty, q_full, do_full, q_empty, do_empty;
  __device__ __forceinline__ explicit StreamBarriers(uint32_t at)
      : k_full(at),
        v_full(at + 8),
        kv_empty(at + 16),
        q_full(at + 24),
        do_full(q_full + 8 * kStages),
        q_empty(do_full + 8 * kStages),
        do_empty(q_empty + 8 * kStages) {}
  __device__ __forceinline__ void init(int readers) const {
    constexpr int kConsumerWarps = 8;
    ptx::mbarrier_init(k_full, 1);
    ptx::mbarrier_init(v_full, 1);
    ptx::mbarrier_init(kv_empty, kConsumerWarps);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, readers);
      ptx::mbarrier_init(do_empty + 8 * i, kConsumerWarps);
    }
    ptx::fence_barrier_init();
  }
};

// One warp's work: K and V of each key tile, and a ring of query tiles, Q with their statistics and dO.
template <class Config>
__device__ __forceinline__ void load_tiles(const BwdParams& p, const KeyGrid& grid, const BwdMaps& maps,
                                           const StreamBarriers<Config::kStages>& barriers, KeyTiles tiles,
                                           uint32_t k_tile, uint32_t v_tile, uint32_t q_ring,
                                           uint32_t do_ring, uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  const Problem& problem = p.problem;
  const BwdWorkspace<Config> workspace(p);
  Ring<Config::kStages> ring;
  uint32_t kv_parity = 1;
  for (KeyTile tile{}; tiles.take<Config>(problem, grid, workspace.counter(), tile);) {
    const QueryTiles<Config> queries(problem, tile, tile.begin, tile.end);
    if (threadIdx.x == 0) {
      QueryStep<Config> at(tile, queries);
      for (int step = 0; step < queries.steps; ++step) {
        const RowBox rows = row_box<kM>(problem, tile, tile.q_row, tile.q_len, at.m * kM);
        const uint32_t q_full = barriers.q_full + 8 * ring.stage;
        ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
        ptx::mbarrier_arrive_expect_tx(q_full, Config::kBytesQ + Config::kStatistics);
#pragma unroll
        for (int chunk = 0; chunk < kD / 64; ++chunk)
          ptx::tma_load_4d(q_ring + ring.stage * Config::kBytesQ + chunk * kM * 128, &maps.q, q_full,
                           chunk * 64, rows.row, at.head, rows.batch);
        ptx::bulk_load(statistics + ring.stage * Config::kStatistics,
                       workspace.statistics(workspace.first_tile(problem, tile, at.head) + at.m),
                       Config::kStatistics, q_full);
        const RowBox keys = row_box<kN>(problem, tile, tile.k_row, tile.k_len, tile.row);
        if (step == 0) {
          ptx::mbarrier_wait(barriers.kv_empty, kv_parity);
          kv_parity ^= 1;
          tma_load_tile<kN, kD>(k_tile, maps.k, barriers.k_full, keys.row, tile.head, keys.batch);
        }
        ptx::mbarrier_wait(barriers.do_empty + 8 * ring.stage, ring.parity ^ 1);
        tma_load_tile<kM, kD>(do_ring + ring.stage * Config::kBytesQ, maps.dout,
                              barriers.do_full + 8 * ring.stage, rows.row, at.head, rows.batch);
        if (step == 0)
          tma_load_tile<kN, kD>(v_tile, maps.v, barriers.v_full, keys.row, tile.head, keys.batch);
        ring.advance();
        at.advance(tile, queries);
      }
    }
    __syncwarp();
  }
}

}  // namespace plab::ops::attention::sm90
