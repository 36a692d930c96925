// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

// Which tiles a block of the Hopper forward works on, and in which order.
namespace plab::ops::attention::sm90 {

// The same value in every lane of the warp, as the compiler then knows: loop counts, buffer numbers and
// descriptors that depend on it stay in uniform registers, where wgmma reads them.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// How many tiles all sequences hold, in every lane. The grid knows only a bound.
__device__ __forceinline__ int count_tiles(const Problem& problem, int tile_rows) {
  int tiles = 0;
  for (int b = int(threadIdx.x & 31); b < problem.batch; b += 32)
    tiles += (problem.cu_seqlens_q[b + 1] - problem.cu_seqlens_q[b] + tile_rows - 1) / tile_rows;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) tiles += __shfl_xor_sync(~0u, tiles, step);
  return uniform(tiles);
}

// The tiles of one block of a grid that stays on the multiprocessors. Under a causal mask a section's tiles
// are sorted by falling length; dealt out to and fro (0 1 2 2 1 0 0 1 2 ...) every block gets the same sum of
// lengths, section by section, and needs no counter in global memory. Sequences of different lengths would
// not come out even: their tiles are taken from a counter that all blocks share.
class TileWalk {
 public:
  __device__ __forceinline__ TileWalk(const TileGrid& grid, int32_t* next_tile)
      : next_tile_(next_tile),
        total_(uint32_t(grid.tiles) * uint32_t(grid.groups)),
        span_(grid.last_first ? uint32_t(grid.tiles) * uint32_t(grid.section) : total_) {}

  __device__ __forceinline__ bool next(uint32_t& index) {
    if (next_tile_ != nullptr) {
      int taken = 0;
      if ((threadIdx.x & 31) == 0) taken = atomicAdd(next_tile_, 1);
      index = uint32_t(uniform(taken));
      return index < total_;
    }
    while (first_ < total_) {
      const uint32_t at = turn_ * gridDim.x + (turn_ & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
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
  int32_t* next_tile_;
  uint32_t total_, span_, first_ = 0, turn_ = 0;
};

// A section whose tiles come out even when dealt so. With lengths that fall linearly, what the last,
// incomplete rounds cost beyond the average is r (2 blocks - r) / tiles^2, where r is what two-round laps
// leave over.
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

// A tile of kTileQ queries and the tiles of kTileKv keys that it sees, from key_end - 1 down to key_begin; at
// least one, so that rows that see nothing need no code of their own: the mask leaves them a sum of 0. The
// producer works this out and hands it on in shared memory, with the queries: consumers have no time for
// divisions.
struct alignas(16) Work {
  int rows, row;            // valid queries, 0: there is no more work; the first of them in its sequence
  int q_len, k_len;         // of this sequence
  int key_begin, key_end;   // key tiles
  int clear_from, edge_at;  // key tiles n with clear_from <= n < edge_at are seen whole by every row
  int head, batch;
  int q_row, k_row;  // where the sequence begins in its tensors
};

template <int kTileQ, int kTileKv>
__device__ __forceinline__ void find_work(const Problem& problem, const TileGrid& grid, TileWalk& walk,
                                          Work& work) {
  work.rows = 0;
  Tile tile{};
  for (uint32_t index; !tile.valid;) {
    if (!walk.next(index)) return;
    tile = find_tile(problem, grid, true, index);
  }
  const Visible visible(problem, tile);
  work.rows = uniform(min(kTileQ, tile.q_len - tile.row));
  const int last = tile.row + work.rows - 1;
  work.key_begin = uniform(visible.low(tile.row) / kTileKv);
  work.key_end = uniform((visible.high(last, tile.k_len) + kTileKv - 1) / kTileKv);
  if (work.key_begin >= work.key_end) work.key_begin = 0, work.key_end = 1;
  work.clear_from = uniform((visible.low(last) + kTileKv - 1) / kTileKv);
  work.edge_at = uniform(visible.high(tile.row, tile.k_len) / kTileKv);
  work.row = uniform(tile.row);
  work.q_len = tile.q_len;
  work.k_len = tile.k_len;
  work.head = uniform(tile.head);
  work.batch = uniform(tile.batch);
  work.q_row = uniform(int(tile.q_row));
  work.k_row = uniform(int(tile.k_row));
}

__device__ __forceinline__ void write_work(uint32_t smem, const Work& work) {
  const int* w = reinterpret_cast<const int*>(&work);
#pragma unroll
  for (int i = 0; i < int(sizeof(Work)) / 16; ++i)
    ptx::store_shared_16(smem + 16 * i, make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]));
}

__device__ __forceinline__ Work read_work(uint32_t smem) {
  Work work;
  int* w = reinterpret_cast<int*>(&work);
#pragma unroll
  for (int i = 0; i < int(sizeof(Work)) / 16; ++i) {
    const uint4 v = ptx::load_shared_16(smem + 16 * i);
    w[4 * i] = uniform(int(v.x)), w[4 * i + 1] = uniform(int(v.y));
    w[4 * i + 2] = uniform(int(v.z)), w[4 * i + 3] = uniform(int(v.w));
  }
  return work;
}

// The masks of a piece of work, for code that asks by query and key.
__device__ __forceinline__ Visible visible_of(const Problem& problem, const Work& work) {
  Tile tile{};
  tile.q_len = work.q_len;
  tile.k_len = work.k_len;
  return Visible(problem, tile);
}

// Where the key tiles of one warpgroup's 64 rows end: key_begin if none of its rows is valid, and under a
// causal mask perhaps one tile before the block's end.
template <int kTileKv>
__device__ __forceinline__ int own_end(const Problem& problem, const Work& work, int group) {
  if (64 * group >= work.rows) return work.key_begin;
  const int high = visible_of(problem, work).high(work.row + min(64 * group + 64, work.rows) - 1, work.k_len);
  return max(uniform((high + kTileKv - 1) / kTileKv), max(work.key_end - 1, work.key_begin + 1));
}

}  // namespace plab::ops::attention::sm90
