// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "ops/attention/sm90/bwd_workspace.cuh"
#include "ops/attention/sm90/gemm.cuh"

// The epilogue of the backward up to head_dim 128: stores dQ at each step, dK and dV at the end of a key tile.
namespace plab::ops::attention::sm90 {

constexpr int kOwnBarrier = 2;  // named barriers: this one and the next, for one warpgroup each

// dQ = dS K: half of the columns of 64 queries, or all columns of half of 128 queries. Issues one group, does not wait.
template <class Config>
__device__ __forceinline__ void issue_dq(float (&dq)[Config::kSumRegs], uint32_t ds_tile, uint32_t k_tile,
                                         int group) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  const uint32_t rows = kM == 128 ? group * 64 * 128 : 0;
  const uint32_t columns = kM == 128 ? 0 : kD == 128 ? group * kN * 128 : group * 64;
  const uint64_t a = ptx::descriptor_k_major(ds_tile + rows),
                 b = ptx::descriptor_mn_major(k_tile + columns, kN * 128);
#pragma unroll
  for (int i = 0; i < kN / 16; ++i)
    ptx::Wgmma<typename Config::Element, Config::kSumColumns, false, true>::ss(
        dq, ptx::descriptor_step(a, depth_step<kM>(0, i)), ptx::descriptor_step(b, i * 2048), i > 0);
  ptx::wgmma_commit();
}

// Writes dQ to shared memory, in the order of the accumulator's registers. A warp of reduce_dq reads it there.
template <class Config>
__device__ __forceinline__ void stage_dq(uint32_t sum, const float (&dq)[Config::kSumRegs]) {
#pragma unroll
  for (int i = 0; i < Config::kSumRegs; i += 4)
    ptx::store_shared_16(sum + i * kWarpgroup * 4,
                         make_uint4(__float_as_uint(dq[i]), __float_as_uint(dq[i + 1]),
                                    __float_as_uint(dq[i + 2]), __float_as_uint(dq[i + 3])));
}

// Stores 64 rows of dK or dV, times `by`. The staging area is this warpgroup's chunks of dS, from tile `buffer` on.
// `out_lane` is where this lane stores a fragment, `ds_chunk` where the chunk begins.
template <class Config>
__device__ __forceinline__ void store_gradient(const View& view, const Tile& tile, int keys, int columns,
                                               const float (&acc)[Config::kHeadDim / 2], float by, int buffer,
                                               uint32_t ds_chunk, uint32_t out_lane, int group, int thread) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim;
  constexpr int kPieces = kD / 8, kRows = kWarpgroup / kPieces;  // rows at a time
  const uint32_t offset = buffer * Config::kBytesDs;
#pragma unroll
  for (int i = 0; i < kD / 16; ++i) {
    uint32_t word[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      word[j] = ptx::pack_pair<Element>(acc[8 * i + 2 * j] * by, acc[8 * i + 2 * j + 1] * by);
    ptx::stmatrix_x4((out_lane + offset + (i / 4) * Config::kBytesDs) ^ ((i % 4) << 5), word);
  }
  ptx::named_barrier_sync(kOwnBarrier + group, kWarpgroup);
  const int piece = thread % kPieces, first = tile.row + 64 * group;
  Element* const out = row_pointer<Element>(view, tile.batch, tile.k_row + first, tile.head) + piece * 8;
  const uint32_t from = ds_chunk + offset + (piece / 8) * Config::kBytesDs;
#pragma unroll
  for (int row = thread / kPieces; row < 64; row += kRows)
    if (64 * group + row < keys && piece * 8 < columns)
      *reinterpret_cast<uint4*>(out + row * view.row) =
          ptx::load_shared_16(from + row * 128 + (((piece % 8) ^ (row & 7)) << 4));
  ptx::named_barrier_sync(kOwnBarrier + group, kWarpgroup);
}

// Writes dK and dV of a part of a split key tile to the workspace.
template <class Config>
__device__ __forceinline__ void store_part(const BwdParams& p, const float (&dk)[Config::kHeadDim / 2],
                                           const float (&dv)[Config::kHeadDim / 2], int piece, int group,
                                           int thread) {
  constexpr int kD = Config::kHeadDim;
  float4* const out = BwdWorkspace<Config>(p).piece(piece, group) + thread;
#pragma unroll
  for (int i = 0; i < kD / 8; ++i) {
    out[i * kWarpgroup] = make_float4(dk[4 * i], dk[4 * i + 1], dk[4 * i + 2], dk[4 * i + 3]);
    out[(kD / 8 + i) * kWarpgroup] = make_float4(dv[4 * i], dv[4 * i + 1], dv[4 * i + 2], dv[4 * i + 3]);
  }
}

// The work of one warp per consumer warpgroup: it adds the warpgroup's part of dQ from shared memory to the sum.
// The first key tile that a query tile sees stores its part, the other key tiles add theirs after it. In turns
// mode they add one after the other, so the sum has the same bits in every run. Tiles start in that order, so a
// block only waits for work that has started.
template <class Config>
__device__ __forceinline__ void reduce_dq(const BwdParams& p, const KeyGrid& grid, KeyTiles tiles, int group,
                                          uint32_t from, int full, int empty) {
  constexpr int kN = Config::kTileKv, kThreads = kWarpgroup + 32;
  const Problem& problem = p.problem;
  const BwdWorkspace<Config> workspace(p);
  const bool leader = threadIdx.x % 32 == 0, in_turns = grid.in_turns;
  ptx::named_barrier_arrive(empty, kThreads);
  for (KeyTile tile{}; tiles.next(tile);) {
    const QueryTiles<Config> queries(problem, tile, tile.begin, tile.end);
    QueryStep<Config> at(tile, queries);
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t number = workspace.first_tile(problem, tile, at.head) + at.m;
      float* const sum = workspace.sum(number, group);
      int* const turn = workspace.turn(number, group);
      const int mine = tile.row / kN - queries.visible.low(at.m * Config::kTileQ) / kN;
      ptx::named_barrier_sync(full, kThreads);
      if (leader) {
        // The fence for what the warpgroup has stored. Executed by the warpgroup itself, it takes 7 % of its time.
        ptx::fence_proxy_async();
        if (mine > 0) {
          for (int done = 0; in_turns ? done != mine : done == 0;) done = ptx::load_acquire(turn);
          ptx::fence_proxy_async_global();
          ptx::bulk_reduce_add(sum, from, Config::kBytesSum);
        } else {
          ptx::bulk_store(sum, from, Config::kBytesSum);
        }
        ptx::bulk_commit();
        ptx::bulk_wait_read();
      }
      __syncwarp();
      ptx::named_barrier_arrive(empty, kThreads);
      if (leader && (in_turns || mine == 0)) {
        ptx::bulk_wait();
        ptx::store_release(turn, mine + 1);
      }
      at.advance(tile, queries);
    }
  }
}

}  // namespace plab::ops::attention::sm90
