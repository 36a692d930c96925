// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/fwd_epilogue.cuh"
#include "ops/attention/sm90/gemm.cuh"
#include "ops/attention/softmax.cuh"

// The phases of the forward's main loop (fwd_kernel.cuh), for one consumer warpgroup.
namespace plab::ops::attention::sm90 {

constexpr int kTurnBarrier = 1;  // named barriers: this one and the next for the turns of two warpgroups

// Every warp releases a buffer itself. One arrival per warpgroup would be enough after a product, which four warps
// issue together. But a skipped tile could be replaced before another warp has tested its barrier, and that warp
// would wait for a parity that has passed.
template <int kStages>
__device__ __forceinline__ void release_buffer(Ring<kStages>& ring, uint32_t empty, int lane) {
  if (lane == 0) ptx::mbarrier_arrive(empty + 8 * ring.stage);
  ring.advance();
}

// The only Q buffer is released after the last S of a tile.
template <class Config>
__device__ __forceinline__ void release_single_q(const FwdMemory<Config>& memory,
                                                 const Ring<Config::kStagesQ>& q, const WorkTile& work, int n,
                                                 int lane) {
  if (Config::kStagesQ == 1 && n == work.key_begin && lane == 0)
    ptx::mbarrier_arrive(memory.q_empty + 8 * q.stage);
}

// Waits for the next Q and for the description of its tile.
template <class Config>
__device__ __forceinline__ WorkTile next_work_tile(const FwdMemory<Config>& memory,
                                                   const Ring<Config::kStagesQ>& q, int group,
                                                   WarpgroupTile& part) {
  ptx::mbarrier_wait(memory.q_full + 8 * q.stage, q.parity);
  if constexpr (Config::kPingPong) {
    const WorkTile work = read_work_tile(memory.note(q.stage));
    part.end = work.key_end, part.edge = work.edge;
    return work;
  } else {
    part = read_warpgroup_tile(memory.note(q.stage), group);
    return read_work_tile(memory.note(q.stage));
  }
}

// With kPingPong, lets the other warpgroup issue its products.
template <class Config>
__device__ __forceinline__ void pass_turn(int group) {
  if (Config::kPingPong) ptx::named_barrier_arrive(kTurnBarrier + 1 - group, 2 * kWarpgroup);
}

// Sets the rows of V behind the end of a sequence to 0. With cu_seqlens they belong to the next sequence, in a cache
// they are what was there before, and a NaN must not be multiplied by a probability of 0.
template <class Config>
__device__ __forceinline__ void clear_tail(uint32_t v_tile, int first, int own_barrier) {
  // All pieces of whole chunks: the swizzle puts those of a part of a chunk anywhere in it.
  constexpr int kPieces = Config::kColumnsV / 8, kN = Config::kTileKv;
  for (int i = int(threadIdx.x % kWarpgroup); i < (kN - first) * kPieces; i += kWarpgroup) {
    const int row = first + i / kPieces, piece = i % kPieces;
    ptx::store_shared_16(v_tile + (piece / 8) * kN * 128 + row * 128 + (piece % 8) * 16,
                         make_uint4(0, 0, 0, 0));
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(own_barrier, kWarpgroup);
}

// O += P V of key tile n; O = P V where a tile begins.
template <class Config>
__device__ __forceinline__ void issue_pv(float (&o)[Config::kHeadDimV / 2],
                                         const uint32_t (&probability)[Config::kTileKv / 16][4], bool& begins,
                                         const FwdMemory<Config>& memory, const Ring<Config::kStages>& v,
                                         const Problem& problem, int n, int k_len, int own_barrier,
                                         bool copies_rows) {
  ptx::mbarrier_wait(memory.v_full + 8 * v.stage, v.parity);
  if (copies_rows) ptx::fence_proxy_async();
  const uint32_t v_tile = memory.v_ring + v.stage * Config::kBytesV;
  if (problem.stale_keys && (n + 1) * Config::kTileKv > k_len)
    clear_tail<Config>(v_tile, k_len - n * Config::kTileKv, own_barrier);
  ptx::wgmma_fence();
  issue_nn<typename Config::Element, Config::kHeadDimV, Config::kTileKv>(o, probability, v_tile, !begins);
  begins = false;
}

// Scores of key tile n become exponentials; true if O must be multiplied by `rescale`.
template <class Config>
__device__ __forceinline__ bool softmax_tile(float (&s)[Config::kTileKv / 2], LazyRow& state,
                                             float (&rescale)[2], const ScoreMap& map, float slack,
                                             const FwdParams& p, const WorkTile& work,
                                             const WarpgroupTile& part, int n, int band, int mask_part) {
  if (map.remap) remap_scores(s, map);
  if (n < work.clear_from || n >= part.edge) {
    if (Config::kCached && p.mask.counts != nullptr)
      mask_by_blocks<Config>(s, p.mask, mask_part, n, band);
    else
      mask_scores(s, n * Config::kTileKv, work.row + band, visible_of(p.problem, work), work.k_len);
  }
  return exponentiate(s, map.factor, slack, state, rescale);
}

// P as the register operand of P V.
template <class Config>
__device__ __forceinline__ void pack_probabilities(uint32_t (&probability)[Config::kTileKv / 16][4],
                                                   const float (&s)[Config::kTileKv / 2]) {
#pragma unroll
  for (int i = 0; i < Config::kTileKv / 16; ++i) pack_operand<typename Config::Element>(probability[i], s, i);
}

}  // namespace plab::ops::attention::sm90
