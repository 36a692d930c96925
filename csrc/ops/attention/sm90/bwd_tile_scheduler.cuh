// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/tma.cuh"

// The tile scheduler of the backward: which key tile a block works on next, whole or in part, and in what
// order it walks the query tiles that see it.
namespace plab::ops::attention::sm90 {

// Blocks own key tiles. They share Q, dO and the sum for dQ. Under a causal mask the first key tiles have the
// most work and start first. If there are few blocks, this order must hold across all heads: otherwise the long
// tiles of the last head run alone at the end.
template <class Config>
TileGrid make_key_grid(const Problem& p) {
  const int sequences = p.cu_seqlens_q ? p.batch : 1;  // that share q_len
  TileGrid grid =
      make_tile_grid(p, false, Config::kTileKv,
                     p.q_len / sequences * (p.head_dim + p.head_dim_v) * 4 * (p.heads / p.kv_heads));
  if (p.window_right >= 0 && blocks(grid) < 8 * cuda::device_attribute(cudaDevAttrMultiProcessorCount))
    grid.section = grid.groups;
  return grid;
}

template <class Config>
TileGrid make_query_grid(const Problem& p) {
  return make_tile_grid(p, true, Config::kTileQ, p.q_len * p.head_dim * 4);
}

// The query tiles that see a key tile, or one part of these query tiles, in every query head of its key head.
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
  // A part of them.
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile, int first, int last)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(first),
        end(last),
        steps(max(0, end - begin) * heads) {}
  // Whether some query of tile m does not see some key of the key tile.
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
  const int resident = cuda::device_attribute(cudaDevAttrMultiProcessorCount);
  const bool causal = p.window_right >= 0, full = !causal && p.window_left < 0 && !p.cu_seqlens_q;
  KeyGrid grid{make_key_grid<Config>(p), {}};
  grid.in_turns = params.deterministic;
  if (causal && grid.in_turns) {
    // The number of concurrent heads such that at most about 8 blocks wait for each other.
    grid.section = cuda::smaller(grid.groups, cuda::larger(grid.section, resident / 8));
  } else if (causal && p.heads > p.kv_heads) {
    // The number of concurrent key heads that gives every block one long and one short tile (KeyTile), the same in
    // every section.
    const int64_t tiles = blocks(grid) / (p.cu_seqlens_q ? p.batch : 1);
    int sections = static_cast<int>((tiles + resident) / (2 * resident));
    while (sections > 1 && grid.groups % sections != 0) --sections;
    grid.section = grid.groups / cuda::larger(1, sections);
  }
  // Tiles of equal length run in waves, and the last wave may leave most blocks idle. Its tiles are cut into
  // parts, which gives waves of parts. Each part has an overhead of a few query tiles' time. Cutting a tile
  // changes the order of its sums and depends on the number of tiles, so deterministic mode does not cut.
  grid.whole = static_cast<int>(blocks(grid));
  grid.parts = 1;
  if (full && !params.deterministic) {
    constexpr int kMostParts = 8, kOverhead = 3;
    const int left = grid.whole % resident;
    const int64_t steps = (p.q_len + Config::kTileQ - 1) / Config::kTileQ * (p.heads / p.kv_heads);
    int64_t least = steps;
    for (int parts = 2; left > 0 && parts <= kMostParts && left * parts <= cuda::larger(resident, grid.whole);
         ++parts) {
      const int64_t time =
          (left * parts + resident - 1) / resident * ((steps + parts - 1) / parts + kOverhead);
      if (time < least) least = time, grid.parts = parts;
    }
    if (grid.parts > 1) grid.whole -= left;
  }
  return grid;
}

// A block walks the query tiles from the last to the first: under a causal mask all blocks of a head then read
// the same tiles from L2 at the same time. Query heads that share a key head alternate tile by tile, for the same
// reason. Their key tiles take so long that a block's second, short tile would run out of step with the others.
// So short tiles are walked from the first query tile to the last: every pair of a long and a short tile takes
// the same time, and so the short tiles of all blocks run in step too.
struct KeyTile : Tile {
  int begin, end;  // the query tiles to walk
  bool up;         // from `begin` on; else from the last to `begin`
  int piece;       // number of this part among those of all cut tiles; negative: a whole tile
};

// The key tiles of a persistent block. When a block is done with a tile it takes the next one from a counter in
// global memory, because under a causal mask or with cu_seqlens tiles differ in length. The producer warp takes
// the tiles and passes their description to the other warps.
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
  // The next tile, for the producer warp; false: there are no more tiles.
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
