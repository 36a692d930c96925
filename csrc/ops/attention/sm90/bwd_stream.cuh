// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "ops/attention/sm90/bwd_sum.cuh"

// What streams through a block of the backward up to head_dim 128: the query tiles of its key tiles, and what
// they add to dQ.
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
__device__ __forceinline__ void feed_tiles(const BwdParams& p, const KeyGrid& grid, const BwdMaps& maps,
                                           const StreamBarriers<Config::kStages>& barriers, KeyTiles tiles,
                                           uint32_t k_tile, uint32_t v_tile, uint32_t q_ring,
                                           uint32_t do_ring, uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  const Problem& problem = p.problem;
  const BwdScratch<Config> scratch(p);
  Ring<Config::kStages> ring;
  uint32_t kv_parity = 1;
  for (KeyTile tile{}; tiles.take<Config>(problem, grid, scratch.counter(), tile);) {
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
                       scratch.statistics(scratch.first_tile(problem, tile, at.head) + at.m),
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

// One warp's work for each consumer warpgroup: its shares of dQ go from shared memory into the sum. The first
// key tile that a query tile sees stores, the others add: after it, and in turns one after the other, so that
// the sum has the same bits every time. Tiles are begun in that order, so whoever waits waits for work that
// is under way.
template <class Config>
__device__ __forceinline__ void carry_sums(const BwdParams& p, const KeyGrid& grid, KeyTiles tiles, int group,
                                           uint32_t from, int full, int empty) {
  constexpr int kN = Config::kTileKv, kThreads = kWarpgroup + 32;
  const Problem& problem = p.problem;
  const BwdScratch<Config> scratch(p);
  const bool leader = threadIdx.x % 32 == 0, in_turns = grid.in_turns;
  ptx::named_barrier_arrive(empty, kThreads);
  for (KeyTile tile{}; tiles.next(tile);) {
    const QueryTiles<Config> queries(problem, tile, tile.begin, tile.end);
    QueryStep<Config> at(tile, queries);
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t number = scratch.first_tile(problem, tile, at.head) + at.m;
      float* const sum = scratch.sum(number, group);
      int* const turn = scratch.turn(number, group);
      const int mine = tile.row / kN - queries.visible.low(at.m * Config::kTileQ) / kN;
      ptx::named_barrier_sync(full, kThreads);
      if (leader) {
        // For what the warpgroup has stored; by the warpgroup itself the fence takes 7 % of its time.
        ptx::fence_proxy_async();
        if (mine > 0) {
          for (int done = 0; in_turns ? done != mine : done == 0;) done = ptx::load_acquire(turn);
          ptx::fence_proxy_async_global();
          ptx::bulk_reduce_add(sum, from, Config::kBytesSum);
        } else {
          ptx::bulk_store(sum, from, Config::kBytesSum);
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read();
      }
      __syncwarp();
      ptx::named_barrier_arrive(empty, kThreads);
      if (leader && (in_turns || mine == 0)) {
        ptx::bulk_wait();
        ptx::store_release(turn, mine + 1);
      }
      at.advance(tile, queries);
    }
  }
}

}  // namespace plab::ops::attention::sm90
