// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "ops/attention/sm90/bwd_workspace.cuh"

// The warps of the backward up to head_dim 128 that add dQ to its accumulator.
namespace plab::ops::attention::sm90 {

// One warp's work for each consumer warpgroup: its shares of dQ go from shared memory into the sum. The first
// key tile that a query tile sees stores, the others add: after it, and in turns one after the other, so that
// the sum has the same bits every time. Tiles are begun in that order, so whoever waits waits for work that
// is under way.
template <class Config>
__device__ __forceinline__ void reduce_dq(const BwdParams& p, const KeyGrid& grid, KeyTiles tiles, int group,
                                          uint32_t from, int full, int empty) {
  constexpr int kN = Config::kTileKv, kThreads = kWarpgroup + 32;
  const Problem& problem = p.problem;
  const BwdWorkspace<Config> workspace(p);
  const bool leader = threadIdx.x % 32 == 0, in_turns = grid.in_turns;
  ptx::named_barrier_arrive(empty, kThreads);
  for (KeyTile tile{}; tiles.next(tile);) {
    const QueryTiles<Config> queries(problem, tile, tile.begin, tile.end);
    QueryStep<Config> at(tile, queries);
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t number = workspace.first_tile(problem, tile, at.head) + at.m;
      float* const sum = workspace.sum(number, group);
      int* const turn = workspace.turn(number, group);
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
