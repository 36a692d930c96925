// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/key_cache.cuh"
#include "ops/attention/sm90/fwd_load.cuh"

// The producer warps of the forward where keys are in a cache: one finds tiles and loads Q, one loads K, one V. If
// pages are whole key tiles, or there are none, TMA loads a tile from the page that the table names. Smaller pages
// are copied row by row with cp.async, into the same swizzled places. Under a block mask keys come without pages.
namespace plab::ops::attention::sm90 {

constexpr int kPaceBarrier = 8;  // a named barrier

// Announces the unit's tiles. The warp that loads K says when the next one is wanted: a tile that is taken earlier
// could be started by an idle block.
template <class Config>
__device__ __forceinline__ void announce_tiles(const FwdParams& p, TileGrid grid, const FwdMaps& maps,
                                               const FwdMemory<Config>& memory) {
  Ring<Config::kStagesQ> q;
  const bool elected = (threadIdx.x & 31) == 0;
  if (p.problem.cu_seqlens_q != nullptr) grid.tiles = count_tiles(p.problem, grid);
  PersistentTiles walk(grid, p.tile_counter, int(blockIdx.x), int(gridDim.x));
  WorkTile work;
#pragma unroll 1
  for (;;) {
    find_work_tile<Config>(p, grid, walk, work);
    announce_tile<Config>(p, maps, memory, q, work, elected);
    if (work.rows == 0) return;
    ptx::named_barrier_sync(kPaceBarrier, 64);
    walk.ask();
  }
}

// One warp copies kRows rows of a key head, from key `key` of the sequence on. Eight lanes copy 128 bytes of a row;
// each lane looks up one row of 32. Rows from k_len on and columns from `cols` on arrive as zeros.
template <int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(uint32_t tile, const View& view, const KeyCache& cache,
                                          int sequence, int key, int k_len, int kv_head, int cols) {
  const int lane = int(threadIdx.x & 31), piece = lane & 7;
#pragma unroll 1
  for (int base = 0; base < kRows; base += 32) {
    const int own = key + base + lane;
    int64_t place = 0;
    if (own < k_len) {
      const KeyPlace at = place_of(cache, sequence, own);
      place = at.page * view.batch + at.row * view.row + kv_head * view.head;
    }
#pragma unroll
    for (int i = 0; i < 32 && i < kRows - base; i += 4) {
      const int row = i + lane / 8;
      const auto* const from =
          static_cast<const uint16_t*>(view.data) + __shfl_sync(~0u, place, row) + piece * 8;
      const uint32_t to = tile + (base + row) * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
      for (int chunk = 0; chunk < kColumns / 64; ++chunk)
        ptx::cp_async_16(to + chunk * kRows * 128, from + chunk * 64,
                         key + base + row < k_len && chunk * 64 + piece * 8 < cols);
    }
  }
}

// Loads K or, with kValues, V of all tiles that announce_tiles announces.
template <class Config, bool kValues>
__device__ __forceinline__ void load_side(const FwdParams& p, const FwdMaps& maps,
                                          const FwdMemory<Config>& memory) {
  constexpr int kN = Config::kTileKv, kColumns = kValues ? Config::kColumnsV : Config::kColumns;
  const bool elected = (threadIdx.x & 31) == 0;
  const KeyCache& cache = p.cache;
  const bool is_loose = cache.pages != nullptr && cache.page_size % kN != 0;
  Ring<Config::kStagesQ> q;
  Ring<Config::kStages> ring;
  if (cache.new_k.data != nullptr) ptx::wait_for_previous_grid();  // which appends to the cache
#pragma unroll 1
  for (;;) {
    ptx::mbarrier_wait(memory.q_full + 8 * q.stage, q.parity);
    // The note stays: no consumer gives it back before it has seen the keys that are loaded here.
    const WorkTile work = read_work_tile(memory.note(q.stage));
    q.advance();
    if (work.rows == 0) return;
    const bool is_masked = p.mask.counts != nullptr;
    const int sequence = is_masked ? work.batch : work.k_row, kv_head = work.head / (p.problem.heads / p.problem.kv_heads);
#pragma unroll 1
    for (int n = work.key_end - 1; n >= work.key_begin; --n) {
      const uint32_t tile = (kValues ? memory.v_ring : memory.k_ring) + ring.stage * kN * kColumns * 2,
                     full = (kValues ? memory.v_full : memory.k_full) + 8 * ring.stage,
                     empty = (kValues ? memory.v_empty : memory.k_empty) + 8 * ring.stage;
      if (is_loose) {
        ptx::mbarrier_wait(empty, ring.parity ^ 1);
        copy_rows<kN, kColumns>(tile, kValues ? p.v : p.k, cache, sequence, n * kN, work.k_len, kv_head,
                                kValues ? p.problem.head_dim_v : p.problem.head_dim);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::fence_proxy_async();  // wgmma reads what cp.async has written
        __syncwarp();
        if (elected) ptx::mbarrier_arrive(full);
      } else {
        const int key = is_masked ? key_of_step<Config>(p.mask, work.k_row, n) : n * kN;
        const KeyPlace place = place_of(cache, sequence, key);
        ptx::mbarrier_wait(empty, ring.parity ^ 1);
        if (elected)
          tma_load_tile<kN, kColumns>(tile, kValues ? maps.v : maps.k, full, place.row, kv_head, place.page);
      }
      ring.advance();
      if (!kValues && n == min(work.key_end - 1, work.key_begin + 2))
        ptx::named_barrier_arrive(kPaceBarrier, 64);
    }
  }
}

template <class Config>
__device__ __forceinline__ void load_cached_tiles(const FwdParams& p, const TileGrid& grid,
                                                  const FwdMaps& maps, const FwdMemory<Config>& memory) {
  const int warp = uniform(int(threadIdx.x) / 32);
  if (warp == 1)
    load_side<Config, false>(p, maps, memory);
  else if (warp == 2)
    load_side<Config, true>(p, maps, memory);
  else if (warp == 0)
    announce_tiles<Config>(p, grid, maps, memory);
}

}  // namespace plab::ops::attention::sm90
