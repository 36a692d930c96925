// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/tma.cuh"

// The tile scheduler of the backward: which key tile a block works on next, whole or in part, and in what
// order it walks the query tiles that see it.
namespace plab::ops::attention::sm90 {

// Blocks that own key tiles; what they share is Q, dO and dQ's sum. Under a causal mask the first of them
// have the most work and start first; where there are few blocks, that order has to hold across all heads, or
// the last head's long ones end alone.
template <class Config>
TileGrid make_key_grid(const Problem& p) {
  const int sequences = p.cu_seqlens_q ? p.batch : 1;  // that share q_len
  TileGrid grid = make_tile_grid(p, false, Config::kTileKv,
                                 p.q_len / sequences * p.head_dim * 8 * (p.heads / p.kv_heads));
  if (p.window_right >= 0 && blocks(grid) < 8 * cuda::device_attribute<cudaDevAttrMultiProcessorCount>())
    grid.section = grid.groups;
  return grid;
}

template <class Config>
TileGrid make_query_grid(const Problem& p) {
  return make_tile_grid(p, true, Config::kTileQ, p.q_len * p.head_dim * 4);
}

// The query tiles that see a key tile, or one part of them, in every query head that shares its key head.
template <class Config>
struct QueryTiles {
  Visible visible;
  int keys, heads, begin, end, steps;
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(visible.low_query(tile.row) / Config::kTileQ),
        end((visible.high_query(tile.row + keys - 1, tile.q_len) + Config::kTileQ - 1) / Config::kTileQ) {
    steps = max(0, end - begin) * heads;
  }
  // Some of them.
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile, int first, int last)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(first),
        end(last),
        steps(max(0, end - begin) * heads) {}
  // Whether some pair of query tile m and the key tile does not see each other.
  __device__ __forceinline__ bool edge(const Tile& tile, int m) const {
    return tile.row + Config::kTileKv > visible.high(m * Config::kTileQ, tile.k_len) ||
           tile.row < visible.low(m * Config::kTileQ + Config::kTileQ - 1);
  }
};

struct KeyGrid : TileGrid, TileSplit {};

inline int cut_tiles(const KeyGrid& grid) { return static_cast<int>(blocks(grid)) - grid.whole; }
inline int pieces(const KeyGrid& grid) { return cut_tiles(grid) * grid.parts; }

template <class Config>
KeyGrid make_schedule(const BwdParams& params) {
  const Problem& p = params.problem;
  const int resident = cuda::device_attribute<cudaDevAttrMultiProcessorCount>();
  const bool causal = p.window_right >= 0, full = !causal && p.window_left < 0 && !p.cu_seqlens_q;
  KeyGrid grid{make_key_grid<Config>(p), {}};
  grid.in_turns = params.deterministic;
  if (causal && grid.in_turns) {
    // So many heads side by side that at most 8 blocks or so wait for each other.
    grid.section = std::min(grid.groups, std::max(grid.section, resident / 8));
  } else if (causal && p.heads > p.kv_heads) {
    // As many key heads side by side as give every block one long and one short tile (KeyTile), and as many
    // every time.
    const int64_t tiles = blocks(grid) / (p.cu_seqlens_q ? p.batch : 1);
    int sections = static_cast<int>((tiles + resident) / (2 * resident));
    while (sections > 1 && grid.groups % sections != 0) --sections;
    grid.section = grid.groups / std::max(1, sections);
  }
  // Tiles of equal length are worked off in rounds, and the last may leave most blocks idle: its tiles are
  // cut into parts, which makes rounds of parts. A part costs some query tiles' time of its own. Where a tile
  // is cut its sums are others, and that depends on how many tiles there are; so not where the same bits are
  // asked for.
  grid.whole = static_cast<int>(blocks(grid));
  grid.parts = 1;
  if (full && !params.deterministic) {
    constexpr int kMostParts = 8, kOverhead = 3;
    const int left = grid.whole % resident;
    const int64_t steps = (p.q_len + Config::kTileQ - 1) / Config::kTileQ * (p.heads / p.kv_heads);
    int64_t least = steps;
    for (int parts = 2; left > 0 && parts <= kMostParts && left * parts <= std::max(resident, grid.whole);
         ++parts) {
      const int64_t time =
          (left * parts + resident - 1) / resident * ((steps + parts - 1) / parts + kOverhead);
      if (time < least) least = time, grid.parts = parts;
    }
    if (grid.parts > 1) grid.whole -= left;
  }
  return grid;
}

// Query tiles are walked from the last to the first: under a causal mask all blocks of a head then walk
// together, and read the same tiles from L2. Heads that share the key head take turns for each tile, for the
// same reason; their tiles take so long that a block's second one, a short one, would walk alone. So there
// the short ones go from the first query tile to the last: a long one and a short one after it being as long
// as any other such pair, all short ones walk together as well.
struct KeyTile : Tile {
  int begin, end;  // the query tiles to walk
  bool up;         // from `begin` on; else from the last to `begin`
  int piece;       // number of this part among those of all cut tiles; negative: a whole tile
};

// The key tiles of a persistent block, which takes the next tile of all when it is done
// with one: under a causal mask or with cu_seqlens they differ in length. The warp that feeds the block takes
// them, by a counter in global memory, and tells the others all there is to know of them.
class KeyTiles {
 public:
  static constexpr int kBytes = 2 * 48 + 4 * 8;  // in shared memory: two tiles and their barriers
  static constexpr int kReaders = 10 * 32;       // threads

  __device__ __forceinline__ explicit KeyTiles(uint32_t at) : at_(at) {}
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < 2; ++i) {
      ptx::mbarrier_init(full(i), 1);
      ptx::mbarrier_init(empty(i), kReaders);
    }
  }
  // The next tile, for the warp that feeds; false: there is none.
  template <class Config>
  __device__ __forceinline__ bool take(const Problem& problem, const KeyGrid& grid, int* counter,
                                       KeyTile& tile) {
    do {
      int index = 0;
      if (threadIdx.x % 32 == 0) index = atomicAdd(counter, 1);
      index = __shfl_sync(~0u, index, 0);
      tile.valid = false;
      tile.piece = index - grid.whole;
      const bool cut = tile.piece >= 0;
      if (cut) index = grid.whole + tile.piece / grid.parts;
      if (int64_t{index} >= int64_t{grid.tiles} * grid.groups) break;
      static_cast<Tile&>(tile) = find_tile(problem, grid, false, uint32_t(index));
      const QueryTiles<Config> queries(problem, tile);
      const int parts = cut ? grid.parts : 1, part = cut ? tile.piece % parts : 0;
      const int count = max(0, queries.end - queries.begin);
      tile.begin = queries.begin + count * part / parts;
      tile.end = queries.begin + count * (part + 1) / parts;
      tile.up = queries.heads > 1 && !grid.in_turns && 2 * count * Config::kTileQ <= tile.q_len;
    } while (!tile.valid);
    if (threadIdx.x % 32 == 0) {
      const uint32_t to = at_ + 48 * ring_.stage;
      ptx::mbarrier_wait(empty(ring_.stage), ring_.parity ^ 1);
      ptx::store_shared_16(to, make_uint4(tile.batch, tile.head, tile.row, tile.q_len));
      ptx::store_shared_16(to + 16,
                           make_uint4(tile.k_len, tile.sequence, uint32_t(tile.q_row), uint32_t(tile.k_row)));
      ptx::store_shared_16(to + 32, make_uint4(tile.begin, tile.end, tile.piece, tile.valid | tile.up << 1));
      ptx::mbarrier_arrive(full(ring_.stage));
    }
    ring_.advance();
    return tile.valid;
  }
  // The same for any other warp.
  __device__ __forceinline__ bool next(KeyTile& tile) {
    const uint32_t from = at_ + 48 * ring_.stage;
    ptx::mbarrier_wait(full(ring_.stage), ring_.parity);
    const uint4 a = ptx::load_shared_16(from), b = ptx::load_shared_16(from + 16),
                c = ptx::load_shared_16(from + 32);
    ptx::mbarrier_arrive(empty(ring_.stage));
    ring_.advance();
    tile.batch = uniform(a.x), tile.head = uniform(a.y), tile.row = uniform(a.z), tile.q_len = uniform(a.w);
    tile.k_len = uniform(b.x), tile.sequence = uniform(b.y);
    tile.q_row = uniform(b.z), tile.k_row = uniform(b.w);
    tile.begin = uniform(c.x), tile.end = uniform(c.y), tile.piece = uniform(c.z);
    const int flags = uniform(c.w);
    tile.up = flags >> 1;
    return tile.valid = flags & 1;
  }

 private:
  __device__ __forceinline__ static int uniform(uint32_t x) { return __shfl_sync(~0u, int(x), 0); }
  __device__ __forceinline__ uint32_t full(int i) const { return at_ + 96 + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const { return at_ + 112 + 8 * i; }

  uint32_t at_;
  Ring<2> ring_;
};

template <class Config>
struct QueryStep {
  int head, m, step;
  __device__ __forceinline__ QueryStep(const KeyTile& tile, const QueryTiles<Config>& queries)
      : head(tile.head * queries.heads),
        m(tile.up ? queries.begin : queries.end - 1),
        step(tile.up ? 1 : -1) {}
  __device__ __forceinline__ void advance(const Tile& tile, const QueryTiles<Config>& queries) {
    if (++head == (tile.head + 1) * queries.heads) {
      head = tile.head * queries.heads;
      m += step;
    }
  }
};

}  // namespace plab::ops::attention::sm90
