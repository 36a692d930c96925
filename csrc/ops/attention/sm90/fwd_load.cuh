// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/fwd_config.cuh"

// The producer warp of the forward.
namespace plab::ops::attention::sm90 {

// Passes the description of a tile to the consumers, together with Q.
template <class Config>
__device__ __forceinline__ void announce_tile(const FwdParams& p, const FwdMaps& maps,
                                              const FwdMemory<Config>& memory, Ring<Config::kStagesQ>& q,
                                              const WorkTile& work, bool elected) {
  constexpr int kM = Config::kTileQ;
  ptx::mbarrier_wait(memory.q_empty + 8 * q.stage, q.parity ^ 1);
  if (elected) {
    write_work_tile<kM / 64, Config::kTileKv, Config::kPingPong>(memory.note(q.stage), p.problem, p.rows,
                                                                 work);
    if (work.rows > 0)
      tma_load_tile<kM, Config::kColumns>(memory.q_ring + q.stage * Config::kBytesQ, maps.q,
                                          memory.q_full + 8 * q.stage, work.q_row + work.row, work.head,
                                          work.batch);
    else
      ptx::mbarrier_arrive(memory.q_full + 8 * q.stage);
  }
  q.advance();
}

// The producer warp of unit number `unit`: finds the unit's next tile, passes its description to the consumers
// together with Q, and refills the rings of K and V as consumers free them. The whole warp waits and counts, and
// one lane copies: values that are equal in all lanes take uniform registers only.
template <class Config>
__device__ __forceinline__ void load_tiles(const FwdParams& p, TileGrid grid, const FwdMaps& maps,
                                           const FwdMemory<Config>& memory, int unit) {
  constexpr int kN = Config::kTileKv;
  constexpr int kStages = Config::kStages, kStagesQ = Config::kStagesQ;
  const Problem& problem = p.problem;
  int32_t* const counter = p.tile_counter;
  Ring<kStagesQ> q;
  Ring<kStages> k, v;
  const bool elected = (threadIdx.x & 31) == 0;
  if (problem.cu_seqlens_q != nullptr) grid.tiles = count_tiles(problem, grid);
  PersistentTiles walk(grid, counter, Config::kUnits * int(blockIdx.x) + unit,
                       Config::kUnits * int(gridDim.x));
  WorkTile work;
  int k_row = 0, kv_head = 0, batch = 0;
  const auto load_k = [&](int n) {
    ptx::mbarrier_wait(memory.k_empty + 8 * k.stage, k.parity ^ 1);
    if (elected)
      tma_load_tile<kN, Config::kColumns>(memory.k_ring + k.stage * Config::kBytesK, maps.k,
                                          memory.k_full + 8 * k.stage, k_row + n * kN, kv_head, batch);
    k.advance();
  };
  const auto load_v = [&](int n) {
    ptx::mbarrier_wait(memory.v_empty + 8 * v.stage, v.parity ^ 1);
    if (elected)
      tma_load_tile<kN, Config::kColumnsV>(memory.v_ring + v.stage * Config::kBytesV, maps.v,
                                           memory.v_full + 8 * v.stage, k_row + n * kN, kv_head, batch);
    v.advance();
  };
  const auto announce = [&] { announce_tile<Config>(p, maps, memory, q, work, elected); };
  find_work_tile<Config>(p, grid, walk, work);
  if (kStagesQ > 1 || work.rows == 0) announce();
#pragma unroll 1
  while (work.rows > 0) {
    k_row = work.k_row, kv_head = work.head / (problem.heads / problem.kv_heads), batch = work.batch;
    const int begin = work.key_begin, end = work.key_end;
    // When to take the next tile, when to compute where it lies, and when to announce it with its queries,
    // which needs a free buffer. Computing it takes a while, and the rings must not run empty meanwhile: with
    // one buffer for Q it is done at once. The counter is read late, so that no unit holds a tile that an idle
    // unit could start. With cu_seqlens it is read early, because there the computation takes longest.
    const bool late = counter != nullptr && problem.cu_seqlens_q == nullptr;
    const int early = max(late ? min(end - 2, begin + 1) : end - 2, begin);
    const int asks = late ? min(end - 1, begin + 2) : end - 1;
    const int looks = late ? min(end - 1, begin + 1) : kStagesQ > 1 ? early : end - 1;
    load_k(end - 1);
    if (kStagesQ == 1) announce();
#pragma unroll 1
    for (int n = end - 1; n >= begin; --n) {
      if (n > begin) load_k(n - 1);
      load_v(n);
      if (n == asks) walk.ask();
      if (n == looks) find_work_tile<Config>(p, grid, walk, work);
      if (kStagesQ > 1 && n == early) announce();
    }
    if (kStagesQ == 1 && work.rows == 0) announce();
  }
}

}  // namespace plab::ops::attention::sm90
