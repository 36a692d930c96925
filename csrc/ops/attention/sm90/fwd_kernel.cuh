// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/cache/load.cuh"
#include "ops/attention/sm90/fwd_load.cuh"
#include "ops/attention/sm90/fwd_mainloop.cuh"
#include "ops/attention/sm90/gemm.cuh"
#include "ops/attention/softmax.cuh"

// The forward for compute capability 9.0.
namespace plab::ops::attention::sm90 {

// attention_fwd_sm90: O = softmax(mask(Q K^T scale)) V and its LSE, by wgmma and TMA.
// Mapping   a persistent kernel: a unit (FwdConfig) stays on its SM and walks over tiles of kTileQ query rows
//           of one head. A producer warp issues TMA loads, and kTileQ / 64 consumer warpgroups own 64 rows
//           each. S(n) = Q K(n)^T is issued before O += P(n+1) V(n+1), so the softmax of tile n overlaps with
//           the second product. With kPingPong the two warpgroups issue in turns, so the products of one
//           overlap with the softmax of the other. P stays in registers, as the A operand. With several
//           buffers for Q the first S of the next query tile is issued before the last P V of this one, and O
//           is stored while products run.
// Bytes     2 B (2 Sq H + 2 Sk Hkv) D + 4 B H Sq        Flops  4 B H Sq Sk D, half of it under a causal mask
// Roof      Sk / 2 flop per byte: compute, 989 TFLOP/s dense. At d64 the exponentials (16 a clock and
//           SM) take as long as the products.
// Contract  attention.h, sm90/launch.h
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_fwd_sm90_kernel(const __grid_constant__ FwdParams p, const __grid_constant__ TileGrid grid,
                              const __grid_constant__ FwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV, kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kStages = Config::kStages, kStagesQ = Config::kStagesQ;
  extern __shared__ __align__(1024) unsigned char bytes[];
  const int warpgroup = uniform(int(threadIdx.x) / kWarpgroup);
  // Units share the first warpgroup, one warp each.
  const int unit = Config::kUnits == 1 ? 0
                   : warpgroup == 0    ? uniform(int(threadIdx.x) / 32) % Config::kUnits
                                       : (warpgroup - 1) / Config::kConsumers;
  const FwdMemory<Config> memory(ptx::shared_address(bytes) + unit * Config::kUnitBytes);
  const Problem& problem = p.problem;

  const bool copies_rows = Config::kCached && maps.copies_rows;
  if (threadIdx.x < 32 * Config::kUnits && threadIdx.x % 32 == 0) memory.init_barriers(copies_rows ? 32 : 1);
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if constexpr (Config::kCached)
      load_cached_tiles<Config>(p, grid, maps, memory);
    else if (threadIdx.x < 32 * Config::kUnits)
      load_tiles<Config>(p, grid, maps, memory, unit);
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegs>();
    const int group = warpgroup - 1 - Config::kConsumers * unit, lane = int(threadIdx.x & 31);
    const int band = 64 * group + 16 * (int(threadIdx.x % kWarpgroup) / 32);  // this warp's rows in the tile
    const bool leader = threadIdx.x % kWarpgroup == 0;
    const int own_barrier = 3 + warpgroup;  // a named barrier among a warpgroup's own threads
    static_assert(!Config::kPingPong || Config::kUnits * Config::kConsumers == 2);
    if (Config::kPingPong && group == 1)
      ptx::named_barrier_arrive(kTurnBarrier, 2 * kWarpgroup);  // group 0 begins

    Ring<kStagesQ> q;
    Ring<kStages> k, v;
    const ScoreMap map(problem);
    const float slack = fminf(LazyRow::kSlack / map.factor, 0x1p125f);
    float o[kDv / 2], s[kN / 2], rescale[2];
    uint32_t probability[kN / 16][4];
    LazyRow state;
    int leaving = -1;  // the Q buffer from which TMA is storing O
    WarpgroupTile part{};
    int mask_part = BlockMask::kAll;  // what the block mask says of the scores that are computed
    bool begins = true;  // the next P V is the first of its tile: it overwrites O, so O need not be set to 0
#pragma unroll
    for (int i = 0; i < kDv / 2; ++i) o[i] = 0.f;

    // The phases, with their state bound here once: passing all of it at every call site makes the compiler
    // allocate registers differently.
    const auto release = [&](auto& ring, uint32_t empty) { release_buffer(ring, empty, lane); };
    const auto skip = [&](auto& ring, uint32_t full, uint32_t empty) {
      ptx::mbarrier_wait(full + 8 * ring.stage, ring.parity);
      release(ring, empty);
    };
    // S = Q K^T of the next key tile; with kPingPong when it is this warpgroup's turn.
    const auto issue_scores = [&] {
      ptx::mbarrier_wait(memory.k_full + 8 * k.stage, k.parity);
      if (copies_rows) ptx::fence_proxy_async();  // wgmma reads what cp.async has written
      if (Config::kPingPong) ptx::named_barrier_sync(kTurnBarrier + group, 2 * kWarpgroup);
      ptx::wgmma_fence();
      issue_nt<Element, kN, kD, kM>(s, memory.q_ring + q.stage * Config::kBytesQ + 64 * 128 * group,
                                    memory.k_ring + k.stage * Config::kBytesK);
    };
    const auto issue_output = [&](int n, int k_len) {
      issue_pv<Config>(o, probability, begins, memory, v, problem, n, k_len, own_barrier, copies_rows);
    };
    const auto softmax = [&](const WorkTile& work, int n) {
      return softmax_tile<Config>(s, state, rescale, map, slack, p, work, part, n, band, mask_part);
    };
    const auto store = [&](const LazyRow& rows, int stage) {
      store_by_tma<Config>(p, maps, memory, o, rows, map.factor, stage, leaving, group, band, lane, leader,
                           own_barrier);
    };

    // One tile after the other; products of a tile overlap with those of the next.
    WorkTile work = next_work_tile<Config>(memory, q, group, part);
#pragma unroll 1
    while (work.rows > 0) {
      int end = part.end;
      if (end == work.key_begin) {  // the tile's last rows do not reach this group
        for (int n = work.key_end; n > work.key_begin; --n) {
          skip(k, memory.k_full, memory.k_empty);
          skip(v, memory.v_full, memory.v_empty);
        }
        release(q, memory.q_empty);
        work = next_work_tile<Config>(memory, q, group, part);
        continue;
      }
      if (end < work.key_end) {
        skip(k, memory.k_full, memory.k_empty);
        skip(v, memory.v_full, memory.v_empty);
      }
      begins = true;
      state = LazyRow{};
      int n = end - 1, n_output, k_len, stage;
      mask_part = part_of_step<Config>(p.mask, work.k_row, n, group);
      issue_scores();
      pass_turn<Config>(group);
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      release(k, memory.k_empty);
      release_single_q<Config>(memory, q, work, n, lane);
      softmax(work, n);
      pack_probabilities<Config>(probability, s);
#pragma unroll 1
      for (;;) {
        const bool last = n == work.key_begin;
        bool skips = false;
        n_output = n--, k_len = work.k_len, stage = q.stage;
        if (last) {
          if (kStagesQ == 1) break;
          wait_for_store<Config>(memory, leaving, lane, leader);
          q.advance();
          work = next_work_tile<Config>(memory, q, group, part);
          if (work.rows == 0) break;
          end = part.end;
          if (end == work.key_begin) break;
          skips = end < work.key_end;
          if (skips) skip(k, memory.k_full, memory.k_empty);
          n = end - 1;
        }
        mask_part = part_of_step<Config>(p.mask, work.k_row, n, group);
        issue_scores();
        issue_output(n_output, k_len);
        pass_turn<Config>(group);
        ptx::wgmma_wait<1>();
        ptx::keep(s);
        release(k, memory.k_empty);
        release_single_q<Config>(memory, q, work, n, lane);
        const LazyRow finished = state;
        if (last) state = LazyRow{};
        const bool changed = softmax(work, n);
        ptx::wgmma_wait_after<0>(state.sum[0] + state.sum[1]);
        ptx::keep(o);
        ptx::keep(probability);
        release(v, memory.v_empty);
        wait_for_store<Config>(memory, leaving, lane, leader);
        if (last) {
          if (skips) skip(v, memory.v_full, memory.v_empty);
          store(finished, stage);
          begins = true;
        } else if (changed) {
#pragma unroll
          for (int i = 0; i < kDv / 2; ++i) o[i] *= rescale[i / 2 % 2];
        }
        pack_probabilities<Config>(probability, s);
      }
      issue_output(n_output, k_len);
      ptx::wgmma_wait<0>();
      ptx::keep(o);
      ptx::keep(probability);
      release(v, memory.v_empty);
      if (kStagesQ == 1) {
        store_from_registers<Config>(p, o, state, map.factor, work, part.lse, band, lane);
        q.advance();
        work = next_work_tile<Config>(memory, q, group, part);
      } else {
        wait_for_store<Config>(memory, leaving, lane, leader);
        store_by_tma<Config>(p, maps, memory, o, state, map.factor, stage, leaving, group, band, lane, leader,
                             own_barrier);
        wait_for_store<Config>(memory, leaving, lane, leader);
      }
    }
  }
}

}  // namespace plab::ops::attention::sm90
