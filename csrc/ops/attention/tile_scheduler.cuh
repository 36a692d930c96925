// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/attention.h"

// The tile scheduler of all CUDA kernels: which tile of which head of which sequence a thread block works on.
// The grid is one-dimensional, so that neither heads nor batch meet the limit of 65535, and its size follows
// from shapes alone: with cu_seqlens it is an upper bound, and surplus blocks find no tile. Nothing is read
// back to the host.
namespace plab::ops::attention {

inline TileGrid make_tile_grid(const Problem& p, bool own_queries, int tile_rows, int64_t bytes_per_group) {
  const int64_t rows = own_queries ? p.q_len : p.k_len;
  const int heads = own_queries ? p.heads : p.kv_heads;
  TileGrid grid{};
  grid.tile_rows = tile_rows;
  grid.tiles =
      static_cast<int>(p.cu_seqlens_q ? rows / tile_rows + p.batch : (rows + tile_rows - 1) / tile_rows);
  grid.groups = p.cu_seqlens_q ? heads : heads * p.batch;
  constexpr int64_t kL2Budget = 32 << 20;
  const int64_t fit = kL2Budget / (bytes_per_group > 0 ? bytes_per_group : 1);
  grid.section = static_cast<int>(fit < 1 ? 1 : fit < grid.groups ? fit : grid.groups);
  grid.last_first = own_queries && p.window_right >= 0;
  return grid;
}

inline int64_t blocks(const TileGrid& grid) { return int64_t{grid.tiles} * grid.groups; }

__device__ __forceinline__ int tiles_of(const TileGrid& grid, int rows) {
  return rows > grid.above && rows <= grid.upto ? (rows + grid.tile_rows - 1) / grid.tile_rows : 0;
}

// The sequence that holds tile `number` of all, or -1, where sequence b has count(b) of them. `number` becomes that
// of the tile within its sequence. Called by whole warps, which look at 32 sequences at a time.
template <class Count>
__device__ __forceinline__ int find_sequence(int batch, int& number, Count&& count) {
  const int lane = int(threadIdx.x & 31);
  for (int base = 0; base < batch; base += 32) {
    const int own = base + lane < batch ? count(base + lane) : 0;
    int upto = own;
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += before;
    }
    const uint32_t holds = __ballot_sync(~0u, upto > number);
    if (holds) {
      const int owner = __ffs(int(holds)) - 1;
      number -= __shfl_sync(~0u, upto - own, owner);
      return base + owner;
    }
    number -= __shfl_sync(~0u, upto, 31);
  }
  return -1;
}

struct Tile {
  int batch, head;       // batch indexes views (0 with cu_seqlens); head counts on the axis the block owns
  int row;               // first row of the tile within its sequence
  int q_len, k_len;      // of this sequence
  int sequence;          // its number with cu_seqlens, else 0
  int64_t q_row, k_row;  // first row of the sequence within its tensor
  bool valid;
};

__device__ __forceinline__ Tile find_tile(const Problem& p, const TileGrid& grid, bool own_queries,
                                          uint32_t index) {
  const uint32_t per_section = uint32_t(grid.tiles) * uint32_t(grid.section);
  const uint32_t section = index / per_section, within = index - section * per_section;
  const int first = int(section) * grid.section;
  const int width = min(grid.section, grid.groups - first);
  int number = int(within / uint32_t(width));
  const int group = first + int(within) - number * width;
  if (grid.last_first) number = grid.tiles - 1 - number;
  Tile tile{};
  if (p.cu_seqlens_q == nullptr) {
    const int heads = own_queries ? p.heads : p.kv_heads;
    tile.batch = group / heads;
    tile.head = group - tile.batch * heads;
    tile.row = number * grid.tile_rows;
    tile.q_len = int(p.q_len);
    tile.k_len = int(p.k_len);
    tile.valid = true;
    return tile;
  }
  const int32_t* cu = own_queries ? p.cu_seqlens_q : p.cu_seqlens_k;
  tile.head = group;
  const int sequence =
      find_sequence(p.batch, number, [&](int b) { return tiles_of(grid, cu[b + 1] - cu[b]); });
  if (sequence < 0) return tile;
  tile.sequence = sequence;
  tile.row = number * grid.tile_rows;
  tile.q_row = p.cu_seqlens_q[sequence];
  tile.k_row = p.cu_seqlens_k[sequence];
  tile.q_len = p.cu_seqlens_q[sequence + 1] - p.cu_seqlens_q[sequence];
  tile.k_len = p.cu_seqlens_k[sequence + 1] - p.cu_seqlens_k[sequence];
  tile.valid = true;
  return tile;
}

template <class Element>
__device__ __forceinline__ Element* row_pointer(const View& view, int batch, int64_t row, int head) {
  return static_cast<Element*>(view.data) + batch * view.batch + row * view.row + head * view.head;
}

}  // namespace plab::ops::attention
