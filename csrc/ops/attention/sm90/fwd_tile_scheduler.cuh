// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/key_cache.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/cache/block_mask.cuh"
#include "ops/attention/sm90/tma.cuh"

// The tile scheduler of the persistent forward kernel: which tiles a block works on, and in which order.
namespace plab::ops::attention::sm90 {

// How many tiles all sequences hold, in every lane. The grid knows only a bound.
__device__ __forceinline__ int count_tiles(const Problem& problem, const TileGrid& grid) {
  int tiles = 0;
  for (int b = int(threadIdx.x & 31); b < problem.batch; b += 32)
    tiles += tiles_of(grid, problem.cu_seqlens_q[b + 1] - problem.cu_seqlens_q[b]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(~0u, tiles, step);
  return uniform(tiles);
}

// The tiles of unit `me` of `many` persistent units. Under a causal mask a section's tiles are sorted by
// decreasing length. In serpentine order (0 1 2 2 1 0 0 1 2 ...) every unit gets the same sum of lengths in each
// section, so no counter in global memory is needed. Where lengths would not balance, units take all tiles but
// their first from a shared counter.
class PersistentTiles {
 public:
  __device__ __forceinline__ PersistentTiles(const TileGrid& grid, int32_t* counter, int me, int many)
      : counter_(counter),
        me_(uint32_t(me)),
        many_(uint32_t(many)),
        taken_(me - many),
        total_(uint32_t(grid.tiles) * uint32_t(grid.groups)),
        span_(grid.last_first ? uint32_t(grid.tiles) * uint32_t(grid.section) : total_) {}

  // Increments the counter for another tile. The next call of next() returns it, which hides the latency.
  __device__ __forceinline__ void ask() {
    if (counter_ == nullptr) return;
    ptx::wait_for_previous_grid();  // which sets the counter to 0
    if ((threadIdx.x & 31) == 0) taken_ = atomicAdd(counter_, 1);
    asked_ = true;
  }

  __device__ __forceinline__ bool next(uint32_t& index) {
    if (counter_ != nullptr) {
      if (!asked_) ask();  // the last tile belonged to no sequence
      asked_ = false;
      index = many_ + uint32_t(uniform(taken_));
      return index < total_;
    }
    while (first_ < total_) {
      const uint32_t at = turn_ * many_ + (turn_ & 1 ? many_ - 1 - me_ : me_);
      ++turn_;
      if (at < min(span_, total_ - first_)) {
        index = first_ + at;
        return true;
      }
      first_ += span_;
      turn_ = 0;
    }
    return false;
  }

 private:
  int32_t* counter_;
  uint32_t me_, many_;
  int taken_;  // in lane 0
  bool asked_ = true;
  uint32_t total_, span_, first_ = 0, turn_ = 0;
};

// A section size whose tiles balance in serpentine order. With linearly decreasing lengths, the last, incomplete
// rounds cost r (2 blocks - r) / tiles^2 more than the average, where r is the number of tiles modulo two
// rounds.
inline int even_section(const TileGrid& grid, int64_t blocks) {
  int best = grid.section;
  double least = 1e30;
  for (int section = grid.section; section >= 1 && 2 * section > grid.section; --section) {
    const double tiles = double(grid.tiles) * section, left = double(int64_t(tiles) % (2 * blocks));
    const double excess = left * (2 * blocks - left) / (tiles * tiles);
    if (excess < least - 0.01) best = section, least = excess;
  }
  return best;
}

// A tile of kTileQ queries and the tiles of kTileKv keys that it sees, from key_end - 1 down to key_begin. There
// is at least one key tile, so rows that see nothing need no special code: the mask gives them a sum of 0. The
// producer computes this and passes it on in shared memory, with the queries, because divisions would slow the
// consumers down.
struct alignas(16) WorkTile {
  int rows, row;           // valid queries (0: no more work); the first one in its sequence
  int q_len, k_len;        // of this sequence
  int key_begin, key_end;  // key tiles
  int clear_from;          // from this key tile on, every row sees the left end of its window
  int head, batch;
  int q_row, k_row;  // where the sequence begins; with a cache k_row is its number, with a mask its list
  int edge;  // if warpgroups share the key tiles: from this key tile on, some row does not see all keys
};

// Its key tiles are the steps of a list (cache/block_mask.cuh), and each of them asks the mask.
template <class Config>
__device__ __forceinline__ void find_masked_tile(const FwdParams& p, const Tile& tile, WorkTile& work) {
  const int number = tile.row / Config::kTileQ, batch = uniform(tile.batch), head = uniform(tile.head);
  const int list = first_block(p.mask, batch, head, number);
  work = {uniform(min(Config::kTileQ, tile.q_len - tile.row)), uniform(tile.row), tile.q_len, tile.k_len};
  work.key_begin = 0;
  work.key_end = uniform(p.mask.counts[list / p.mask.most]) * kStepsOfBlock<Config>;
  work.clear_from = INT_MAX;
  work.head = head, work.batch = batch, work.q_row = 0, work.k_row = list, work.edge = 0;
}

template <class Config>
__device__ __forceinline__ void find_work_tile(const FwdParams& p, const TileGrid& grid,
                                               PersistentTiles& walk, WorkTile& work) {
  constexpr int kTileQ = Config::kTileQ, kTileKv = Config::kTileKv;
  const Problem& problem = p.problem;
  work.rows = 0;
  Tile tile{};
  for (uint32_t index; !tile.valid;) {
    if (!walk.next(index)) return;
    tile = find_tile(problem, grid, true, index);
  }
  if constexpr (Config::kCached) {
    if (p.mask.counts != nullptr) return find_masked_tile<Config>(p, tile, work);
    const int sequence = uniform(problem.cu_seqlens_q != nullptr ? tile.sequence : tile.batch);
    tile.k_row = sequence;
    tile.k_len = uniform(cached_keys(p.cache, problem, sequence));
  }
  const Visible visible(problem, tile);
  work.rows = uniform(min(kTileQ, tile.q_len - tile.row));
  const int last = tile.row + work.rows - 1;
  work.key_begin = uniform(visible.low(tile.row) / kTileKv);
  work.key_end = uniform((visible.high(last, tile.k_len) + kTileKv - 1) / kTileKv);
  if (work.key_begin >= work.key_end) work.key_begin = 0, work.key_end = 1;
  work.clear_from = uniform((visible.low(last) + kTileKv - 1) / kTileKv);
  if (Config::kPingPong) work.edge = uniform(visible.high(tile.row, tile.k_len) / kTileKv);
  work.row = uniform(tile.row);
  work.q_len = tile.q_len;
  work.k_len = tile.k_len;
  work.head = uniform(tile.head);
  work.batch = uniform(tile.batch);
  work.q_row = uniform(int(tile.q_row));
  work.k_row = uniform(int(tile.k_row));
}

__device__ __forceinline__ WorkTile read_work_tile(uint32_t smem) {
  WorkTile work;
  int* w = reinterpret_cast<int*>(&work);
#pragma unroll
  for (int i = 0; i < int(sizeof(WorkTile)) / 16; ++i) {
    const uint4 v = ptx::load_shared_16(smem + 16 * i);
    w[4 * i] = uniform(int(v.x)), w[4 * i + 1] = uniform(int(v.y));
    w[4 * i + 2] = uniform(int(v.z)), w[4 * i + 3] = uniform(int(v.w));
  }
  return work;
}

// The masks of a piece of work, for code that asks by query and key.
__device__ __forceinline__ Visible visible_of(const Problem& problem, const WorkTile& work) {
  Tile tile{};
  tile.q_len = work.q_len;
  tile.k_len = work.k_len;
  return Visible(problem, tile);
}

// What one warpgroup's 64 rows see of the tile, and where their LSE is stored. Not computed if the warpgroups
// take turns, because then they walk over the same key tiles. `end` is key_begin if none of the rows is valid.
// It may be one key tile before the tile's end. From key tile `edge` on, some row does not see all keys.
struct alignas(16) WarpgroupTile {
  int end, edge;
  int64_t lse;  // of the tile's first row
};

template <int kGroups, int kTileKv, bool kTogether>
__device__ __forceinline__ void write_work_tile(uint32_t smem, const Problem& problem, const RowLayout& rows,
                                                const WorkTile& work) {
  const int* w = reinterpret_cast<const int*>(&work);
#pragma unroll
  for (int i = 0; i < int(sizeof(WorkTile)) / 16; ++i)
    ptx::store_shared_16(smem + 16 * i, make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]));
  if (kTogether) return;
  const Visible visible = visible_of(problem, work);
  const int64_t lse = work.batch * rows.batch + work.head * rows.head + work.q_row + work.row;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int first = work.row + 64 * group, last = work.row + min(64 * group + 64, work.rows) - 1;
    const int high = (visible.high(last, work.k_len) + kTileKv - 1) / kTileKv;
    int end = min(max(high, max(work.key_end - 1, work.key_begin + 1)), work.key_end);
    if (64 * group >= work.rows) end = work.key_begin;
    ptx::store_shared_16(
        smem + int(sizeof(WorkTile)) + 16 * group,
        make_uint4(end, visible.high(first, work.k_len) / kTileKv, uint32_t(lse), uint32_t(lse >> 32)));
  }
}

__device__ __forceinline__ WarpgroupTile read_warpgroup_tile(uint32_t smem, int group) {
  const uint4 v = ptx::load_shared_16(smem + int(sizeof(WorkTile)) + 16 * group);
  return {uniform(int(v.x)), uniform(int(v.y)), int64_t(uint64_t(v.w) << 32 | v.z)};
}

}  // namespace plab::ops::attention::sm90
