// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/key_cache.cuh"
#include "ops/attention/sm90/fwd_load.cuh"

// The producer warps of the forward where keys are in a cache: one finds tiles and loads Q, one loads K, one V. TMA
// loads a key tile in boxes that lie in one page each, a lane a box: the whole tile where there are no pages. Boxes of
// few rows take TMA longer than the rest of a tile; then the rows are copied one by one with cp.async, into the same
// swizzled places. Under a block mask keys come without pages.
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

// Which page each row of a key tile is in: lane l looks up rows l, l + 32 ... Rows from k_len on have none.
template <int kRows>
struct RowPages {
  int page[(kRows + 31) / 32];
  __device__ __forceinline__ RowPages(const KeyCache& cache, int sequence, int key, int k_len) {
#pragma unroll
    for (int i = 0; i < (kRows + 31) / 32; ++i) {
      const int own = key + 32 * i + int(threadIdx.x & 31);
      page[i] = own < k_len ? place_of(cache, sequence, own).page : 0;
    }
  }
};

// One warp copies kRows rows of a key head, from key `key` of the sequence on, eight lanes 128 bytes of a row. Rows
// from k_len on and columns from `cols` on arrive as zeros.
template <int kRows, int kColumns>
__device__ __forceinline__ void copy_rows(uint32_t tile, const View& view, const KeyCache& cache,
                                          const RowPages<kRows>& pages, int key, int k_len, int kv_head,
                                          int cols) {
  const int lane = int(threadIdx.x & 31), piece = lane & 7;
  const auto* const head = static_cast<const uint16_t*>(view.data) + kv_head * view.head + piece * 8;
#pragma unroll
  for (int group = 0; group < (kRows + 31) / 32; ++group) {
    const int own = int(uint32_t(key + 32 * group + lane) % uint32_t(cache.page_size));
    const int64_t place = pages.page[group] * view.batch + own * view.row;
#pragma unroll
    for (int i = 0; i < 32 && 32 * group + i < kRows; i += 4) {
      const int row = 32 * group + i + lane / 8;
      const auto* const from = head + __shfl_sync(~0u, place, row % 32);
      const uint32_t to = tile + row * 128 + ((piece ^ (row & 7)) << 4);
#pragma unroll
      for (int chunk = 0; chunk < kColumns / 64; ++chunk)
        ptx::cp_async_16(to + chunk * kRows * 128, from + chunk * 64,
                         key + row < k_len && chunk * 64 + piece * 8 < cols);
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
  const int box = maps.key_rows, lane = int(threadIdx.x & 31);
  Ring<Config::kStagesQ> q;
  Ring<Config::kStages> ring;
  if (cache.new_k.data != nullptr) ptx::wait_for_previous_grid();  // which appends to the cache
#pragma unroll 1
  for (;;) {
    ptx::mbarrier_wait(memory.q_full + 8 * q.stage, q.parity);
    // The note stays: no consumer gives it back before it has seen the keys that are loaded here.
    const WorkTile work = read_work_tile(memory.note(q.stage));
    q.advance();
    if (work.rows == 0) break;
    const bool is_masked = p.mask.counts != nullptr;
    const int sequence = is_masked ? work.batch : work.k_row,
              kv_head = work.head / (p.problem.heads / p.problem.kv_heads);
#pragma unroll 1
    for (int n = work.key_end - 1; n >= work.key_begin; --n) {
      const uint32_t tile = (kValues ? memory.v_ring : memory.k_ring) + ring.stage * kN * kColumns * 2,
                     full = (kValues ? memory.v_full : memory.k_full) + 8 * ring.stage,
                     empty = (kValues ? memory.v_empty : memory.k_empty) + 8 * ring.stage;
      // Pages are looked up before the buffer is free.
      const int key = is_masked ? key_of_step<Config>(p.mask, work.k_row, n) : n * kN;
      if (maps.copies_rows) {
        const RowPages<kN> pages(cache, sequence, key, work.k_len);
        ptx::mbarrier_wait(empty, ring.parity ^ 1);
        copy_rows<kN, kColumns>(tile, kValues ? p.v : p.k, cache, pages, key, work.k_len, kv_head,
                                kValues ? p.problem.head_dim_v : p.problem.head_dim);
        ptx::cp_async_arrive(full);  // when they are there; meanwhile the next tile is copied
      } else {
        const bool has_box = lane * box < kN;
        KeyPlace place{0, cache.page_size};  // behind the last row: zeros
        if (has_box && key + lane * box < work.k_len) place = place_of(cache, sequence, key + lane * box);
        ptx::mbarrier_wait(empty, ring.parity ^ 1);
        if (elected) ptx::mbarrier_arrive_expect_tx(full, kN * kColumns * 2);
        __syncwarp();
        if (has_box) {
#pragma unroll
          for (int chunk = 0; chunk < kColumns / 64; ++chunk)
            ptx::tma_load_4d(tile + chunk * kN * 128 + lane * box * 128, kValues ? &maps.v : &maps.k, full,
                             chunk * 64, place.row, kv_head, place.page);
        }
      }
      ring.advance();
      if (!kValues && n == min(work.key_end - 1, work.key_begin + 2))
        ptx::named_barrier_arrive(kPaceBarrier, 64);
    }
  }
  if (maps.copies_rows) {  // they arrive by themselves, but not after their thread has ended
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
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
