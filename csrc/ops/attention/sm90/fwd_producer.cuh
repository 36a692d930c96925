// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "ops/attention/sm90/fwd_work.cuh"
#include "ops/attention/sm90/tiles.cuh"

// What the warps of the Hopper forward share, and the one that loads.
namespace plab::ops::attention::sm90 {

// A block is one unit or two: a producer warp, kTileQ / 64 consumer warpgroups, and rings of their own. Two
// units walk over different tiles, so that one computes while the other begins or ends a tile.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, bool kPingPong_, int kUnits_ = 1,
          int kStages_ = 2>
struct FwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_;
  static constexpr int kUnits = kUnits_, kStages = kStages_;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kConsumers = kTileQ / 64, kThreads = (1 + kUnits * kConsumers) * kWarpgroup;
  // Registers a thread, out of 65536 for the block: producers need few, consumers hold S, P and O.
  static constexpr int kProducerRegs = kUnits * kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegs = kUnits * kConsumers == 2 ? 224 : kUnits * kConsumers == 3 ? 160 : 112;
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesKv = kTileKv * kHeadDim * 2;
  static constexpr int kBytesRings = 2 * kStages * kBytesKv, kBytesBarriers = 1024;
  static constexpr int kBytesMost = 227 / kUnits * 1024;  // of a unit
  // With several buffers for Q a unit goes from tile to tile without draining its products: one tile's
  // queries are in use, the last one's buffer holds O until TMA has fetched it, the next one's queries
  // arrive. Where there is room for one, O leaves from registers, and the next queries arrive under the end
  // of this tile.
  static constexpr int kStagesQ = std::min(3, (kBytesMost - kBytesRings - kBytesBarriers) / kBytesQ);
  static constexpr int kUnitBytes = (kStagesQ * kBytesQ + kBytesRings + kBytesBarriers + 1023) / 1024 * 1024;
  static constexpr int kSmemBytes = kUnits * kUnitBytes;
  static_assert(kStagesQ >= 1, "tiles and stages exceed Hopper's 227 KB per block");
  static_assert(kTileKv % 16 == 0, "P V consumes keys in steps of 16");
};

struct FwdMaps {
  CUtensorMap q, k, v, o;
};

// Shared memory: the rings, then their barriers, then a note of the work that comes with each Q.
template <class Config>
struct FwdMemory {
  uint32_t q_ring, k_ring, v_ring, q_full, k_full, v_full, q_empty, k_empty, v_empty, notes;

  __device__ __forceinline__ explicit FwdMemory(uint32_t base) {
    constexpr int kQ = Config::kStagesQ, kKv = Config::kStages;
    q_ring = base;
    k_ring = q_ring + kQ * Config::kBytesQ;
    v_ring = k_ring + kKv * Config::kBytesKv;
    q_full = v_ring + kKv * Config::kBytesKv;
    k_full = q_full + 8 * kQ;
    v_full = k_full + 8 * kKv;
    q_empty = v_full + 8 * kKv;
    k_empty = q_empty + 8 * kQ;
    v_empty = k_empty + 8 * kKv;
    notes = q_full + 256;
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Config::kStagesQ + 2 * Config::kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 4 * Config::kConsumers);  // warps
    }
    ptx::fence_barrier_init();
  }
  __device__ __forceinline__ uint32_t note(int stage) const {
    return notes + (int(sizeof(Work)) + 16 * Config::kConsumers) * stage;
  }
};

// The producer warp of unit number `unit`: finds the unit's work, announces it with its Q, and feeds the
// rings of K and V as consumers empty them. The whole warp waits and counts, one lane copies: what all lanes
// agree on costs uniform registers only.
template <class Config>
__device__ __forceinline__ void produce(const FwdParams& p, TileGrid grid, const FwdMaps& maps,
                                        const FwdMemory<Config>& memory, int unit) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kStages = Config::kStages, kStagesQ = Config::kStagesQ;
  const Problem& problem = p.problem;
  int32_t* const next_tile = p.next_tile;
  Ring<kStagesQ> q;
  Ring<kStages> k, v;
  const bool elected = (threadIdx.x & 31) == 0;
  if (problem.cu_seqlens_q != nullptr) grid.tiles = count_tiles(problem, kM);
  TileWalk walk(grid, next_tile, Config::kUnits * int(blockIdx.x) + unit, Config::kUnits * int(gridDim.x));
  Work work;
  int k_row = 0, kv_head = 0, batch = 0;
  const auto load = [&](Ring<kStages>& ring, uint32_t base, uint32_t full, uint32_t empty,
                        const CUtensorMap& map, int n) {
    ptx::mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
    if (elected)
      tma_load_tile<kN, kD>(base + ring.stage * Config::kBytesKv, map, full + 8 * ring.stage, k_row + n * kN,
                            kv_head, batch);
    ring.advance();
  };
  const auto announce = [&] {
    ptx::mbarrier_wait(memory.q_empty + 8 * q.stage, q.parity ^ 1);
    if (elected) {
      write_work<kM / 64, kN, Config::kPingPong>(memory.note(q.stage), problem, p.rows, work);
      if (work.rows > 0)
        tma_load_tile<kM, kD>(memory.q_ring + q.stage * Config::kBytesQ, maps.q, memory.q_full + 8 * q.stage,
                              work.q_row + work.row, work.head, work.batch);
      else
        ptx::mbarrier_arrive(memory.q_full + 8 * q.stage);
    }
    q.advance();
  };
  find_work<kM, kN, Config::kPingPong>(problem, grid, walk, work);
  if (kStagesQ > 1 || work.rows == 0) announce();
#pragma unroll 1
  while (work.rows > 0) {
    k_row = work.k_row, kv_head = work.head / (problem.heads / problem.kv_heads), batch = work.batch;
    const int begin = work.key_begin, end = work.key_end;
    // When to ask for the next tile, to look for it, and to announce it with its queries, which a buffer must
    // be free for. Looking takes a while, in which the rings must not run empty: with one buffer for Q the
    // time for it is at once. A counter is asked late, so that no unit holds a tile that an idle one could
    // begin, but with cu_seqlens, where looking takes longest.
    const bool late = next_tile != nullptr && problem.cu_seqlens_q == nullptr;
    const int early = max(late ? min(end - 2, begin + 1) : end - 2, begin);
    const int asks = late ? min(end - 1, begin + 2) : end - 1;
    const int looks = late ? min(end - 1, begin + 1) : kStagesQ > 1 ? early : end - 1;
    load(k, memory.k_ring, memory.k_full, memory.k_empty, maps.k, end - 1);
    if (kStagesQ == 1) announce();
#pragma unroll 1
    for (int n = end - 1; n >= begin; --n) {
      if (n > begin) load(k, memory.k_ring, memory.k_full, memory.k_empty, maps.k, n - 1);
      load(v, memory.v_ring, memory.v_full, memory.v_empty, maps.v, n);
      if (n == asks) walk.ask();
      if (n == looks) find_work<kM, kN, Config::kPingPong>(problem, grid, walk, work);
      if (kStagesQ > 1 && n == early) announce();
    }
    if (kStagesQ == 1 && work.rows == 0) announce();
  }
}

}  // namespace plab::ops::attention::sm90
