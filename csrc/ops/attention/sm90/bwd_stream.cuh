// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "ops/attention/sm90/bwd_sum.cuh"

// What streams through a block of the backward up to head_dim 128: its key tiles, the query tiles of each,
// and what they add to dQ.
namespace plab::ops::attention::sm90 {

// The key tiles of a block, which stays on its multiprocessor and takes the next tile of all when it is done
// with one: under a causal mask or with cu_seqlens they differ in length. The warp that feeds the block takes
// them, by a counter in global memory, and tells the others.
class KeyTiles {
 public:
  static constexpr int kBytes = 2 * 16 + 4 * 8;  // in shared memory: two numbers and their barriers
  static constexpr int kReaders = 10;            // warps

  __device__ __forceinline__ explicit KeyTiles(uint32_t at) : at_(at) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kReaders);
    }
  }
  // The next tile, for the warp that feeds; false: there is none.
  __device__ __forceinline__ bool take(const Problem& problem, const TileGrid& grid, int* counter,
                                       Tile& tile) {
    int index = 0;
    do {
      if (threadIdx.x % 32 == 0) {
        index = atomicAdd(counter, 1);
        ptx::mbarrier_wait(empty(ring_.stage), ring_.parity ^ 1);
        ptx::store_shared(at_ + 16 * ring_.stage, uint32_t(index));
        ptx::mbarrier_arrive(full(ring_.stage));
      }
      ring_.advance();
      index = __shfl_sync(~0u, index, 0);
    } while (find(problem, grid, index, tile));
    return tile.valid;
  }
  // The same for any other warp.
  __device__ __forceinline__ bool next(const Problem& problem, const TileGrid& grid, Tile& tile) {
    int index;
    do {
      ptx::mbarrier_wait(full(ring_.stage), ring_.parity);
      index = __float_as_int(ptx::load_shared_float(at_ + 16 * ring_.stage));
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty(ring_.stage));
      ring_.advance();
      index = __shfl_sync(~0u, index, 0);
    } while (find(problem, grid, index, tile));
    return tile.valid;
  }

 private:
  __device__ __forceinline__ uint32_t full(int i) const { return at_ + 32 + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return at_ + 48 + 8 * i; }
  // True: number `index` turned out to be no tile, look further.
  __device__ __forceinline__ static bool find(const Problem& problem, const TileGrid& grid, int index,
                                              Tile& tile) {
    tile.valid = false;
    if (int64_t{index} >= int64_t{grid.tiles} * grid.groups) return false;
    tile = find_tile(problem, grid, false, uint32_t(index));
    return !tile.valid;
  }

  uint32_t at_;
  Ring<2> ring_;
};

// The query tiles that meet a key tile, from the last to the first: under a causal mask all blocks of a head
// then walk together, and read the same tiles from L2. Heads that share the key head take turns for each
// tile, for the same reason.
template <class Config>
struct QueryStep {
  int head, m;
  __device__ __forceinline__ QueryStep(const Tile& tile, const QueryTiles<Config>& queries)
      : head(tile.head * queries.heads), m(queries.end - 1) {}
  __device__ __forceinline__ void advance(const Tile& tile, const QueryTiles<Config>& queries) {
    if (++head == (tile.head + 1) * queries.heads) {
      head = tile.head * queries.heads;
      --m;
    }
  }
};

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
  __device__ __forceinline__ void init() const {
    constexpr int kConsumerWarps = 8;
    ptx::mbarrier_init(k_full, 1);
    ptx::mbarrier_init(v_full, 1);
    ptx::mbarrier_init(kv_empty, kConsumerWarps);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, kConsumerWarps);
      ptx::mbarrier_init(do_empty + 8 * i, kConsumerWarps);
    }
    ptx::fence_barrier_init();
  }
};

// One warp's work: K and V of each key tile, and a ring of query tiles, Q with their statistics and dO.
template <class Config>
__device__ __forceinline__ void feed_tiles(const BwdParams& p, const TileGrid& grid, const BwdMaps& maps,
                                           const StreamBarriers<Config::kStages>& barriers, KeyTiles tiles,
                                           uint32_t k_tile, uint32_t v_tile, uint32_t q_ring,
                                           uint32_t do_ring, uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  const Problem& problem = p.problem;
  const BwdScratch<Config> scratch(p);
  Ring<Config::kStages> ring;
  uint32_t kv_parity = 1;
  for (Tile tile{}; tiles.take(problem, grid, scratch.counter(), tile);) {
    const QueryTiles<Config> queries(problem, tile);
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

// One warp's work for each consumer warpgroup: its shares of dQ go from shared memory into the sum. In turns
// (p.deterministic) the key tiles add in their order, so that the sum has the same bits every time; the first
// of them stores. Tiles are begun in that order, so whoever waits waits for work that is under way.
template <class Config>
__device__ __forceinline__ void carry_sums(const BwdParams& p, const TileGrid& grid, KeyTiles tiles,
                                           int group, uint32_t from, int full, int empty) {
  constexpr int kN = Config::kTileKv, kThreads = kWarpgroup + 32;
  const Problem& problem = p.problem;
  const BwdScratch<Config> scratch(p);
  const bool leader = threadIdx.x % 32 == 0, in_turns = p.deterministic;
  ptx::named_barrier_arrive(empty, kThreads);
  for (Tile tile{}; tiles.next(problem, grid, tile);) {
    const QueryTiles<Config> queries(problem, tile);
    QueryStep<Config> at(tile, queries);
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t number = scratch.first_tile(problem, tile, at.head) + at.m;
      float* const sum = scratch.sum(number, group);
      int* const turn = scratch.turn(number, group);
      const int mine = tile.row / kN - queries.visible.low(at.m * Config::kTileQ) / kN;
      ptx::named_barrier_sync(full, kThreads);
      if (leader) {
        if (in_turns && mine > 0) {
          while (ptx::load_acquire(turn) != mine) {
          }
          ptx::fence_proxy_async_global();
        }
        if (in_turns && mine == 0)
          ptx::bulk_store(sum, from, Config::kBytesSum);
        else
          ptx::bulk_reduce_add(sum, from, Config::kBytesSum);
        ptx::bulk_commit();
        ptx::bulk_wait_read();
      }
      __syncwarp();
      ptx::named_barrier_arrive(empty, kThreads);
      if (leader && in_turns) {
        ptx::bulk_wait();
        ptx::store_release(turn, mine + 1);
      }
      at.advance(tile, queries);
    }
  }
}

}  // namespace plab::ops::attention::sm90
