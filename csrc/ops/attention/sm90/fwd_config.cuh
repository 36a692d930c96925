// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.h"
#include "ops/attention/sm90/fwd_tile_scheduler.cuh"
#include "ops/attention/sm90/tma.cuh"

// The shape of a forward kernel, and the shared memory of a block.
namespace plab::ops::attention::sm90 {

// A block has one or two units. A unit is a producer warp, kTileQ / 64 consumer warpgroups, and its own rings. Two
// units work on different tiles, so one computes while the other starts or finishes a tile.
// kHeadDimV is the head_dim of V and O. In shared memory every row has whole chunks of 64 columns. kCached: keys are
// in FwdParams::cache.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, bool kPingPong_, int kUnits_ = 1,
          int kStages_ = 2, int kHeadDimV_ = kHeadDim_, bool kCached_ = false>
struct FwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_, kTileQ = kTileQ_, kTileKv = kTileKv_;
  static constexpr int kColumns = whole_chunks(kHeadDim), kColumnsV = whole_chunks(kHeadDimV);
  static constexpr int kUnits = kUnits_, kStages = kStages_;
  static constexpr bool kPingPong = kPingPong_, kCached = kCached_;
  static constexpr int kConsumers = kTileQ / 64, kThreads = (1 + kUnits * kConsumers) * kWarpgroup;
  // Registers a thread, out of 65536 for the block: producers need few, consumers hold S, P and O.
  static constexpr int kProducerRegs = kUnits * kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegs = kUnits * kConsumers == 2 ? 224 : kUnits * kConsumers == 3 ? 160 : 112;
  static constexpr int kBytesQ = kTileQ * kColumns * 2;
  static constexpr int kBytesK = kTileKv * kColumns * 2, kBytesV = kTileKv * kColumnsV * 2;
  static constexpr int kBytesRings = kStages * (kBytesK + kBytesV), kBytesBarriers = 1024;
  static constexpr int kBytesMost = 227 / kUnits * 1024;  // of a unit
  // With several buffers for Q a unit goes from tile to tile without draining its products. One buffer holds
  // the current queries, one holds O of the previous tile until TMA has read it, and one receives the next
  // queries. With a single buffer O is stored from registers, and the next queries arrive at the end of this
  // tile.
  static constexpr int kStagesQ = cuda::smaller(3, (kBytesMost - kBytesRings - kBytesBarriers) / kBytesQ);
  static constexpr int kUnitBytes = (kStagesQ * kBytesQ + kBytesRings + kBytesBarriers + 1023) / 1024 * 1024;
  static constexpr int kSmemBytes = kUnits * kUnitBytes;
  static_assert(kStagesQ >= 1, "tiles and stages exceed the 227 KB of a block");
  static_assert(kHeadDimV <= kHeadDim, "O is stored through the buffer of Q");
  static_assert(kStagesQ > 1 || !kPingPong,
                "with one buffer O is stored from registers, which turns do not do");
  static_assert(kTileKv % 16 == 0, "P V consumes keys in steps of 16");
  static_assert(!kCached || kUnits == 1, "the other producer warps load from the cache");
};

struct FwdMaps {
  CUtensorMap q, k, v, o;
  int key_rows;      // of a box of k and v: kTileKv, or the part of it that lies in one page of a cache
  bool copies_rows;  // boxes are too small for TMA (cache/load.cuh)
};

// Shared memory: the rings, then their barriers, then a note of the work that comes with each Q.
template <class Config>
struct FwdMemory {
  uint32_t q_ring, k_ring, v_ring, q_full, k_full, v_full, q_empty, k_empty, v_empty, notes;

  __device__ __forceinline__ explicit FwdMemory(uint32_t base) {
    constexpr int kQ = Config::kStagesQ, kKv = Config::kStages;
    q_ring = base;
    k_ring = q_ring + kQ * Config::kBytesQ;
    v_ring = k_ring + kKv * Config::kBytesK;
    q_full = v_ring + kKv * Config::kBytesV;
    k_full = q_full + 8 * kQ;
    v_full = k_full + 8 * kKv;
    q_empty = v_full + 8 * kKv;
    k_empty = q_empty + 8 * kQ;
    v_empty = k_empty + 8 * kKv;
    notes = q_full + 256;
  }
  // `lanes` arrive where K and V are full: one that asks TMA, or all of a warp that copies rows.
  __device__ __forceinline__ void init_barriers(int lanes) const {
    for (int i = 0; i < Config::kStagesQ + 2 * Config::kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, i < Config::kStagesQ ? 1 : lanes);
      ptx::mbarrier_init(q_empty + 8 * i, 4 * Config::kConsumers);  // warps
    }
    ptx::fence_barrier_init();
  }
  __device__ __forceinline__ uint32_t note(int stage) const {
    return notes + (int(sizeof(WorkTile)) + 16 * Config::kConsumers) * stage;
  }
};

}  // namespace plab::ops::attention::sm90
