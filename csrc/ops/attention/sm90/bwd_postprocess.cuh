// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/sm90/bwd_workspace.cuh"
#include "ops/attention/softmax.cuh"

// The kernel after the backward up to head_dim 128: converts accumulators to rows.
namespace plab::ops::attention::sm90 {

// dK and dV of a split key tile: the sum of its parts. kGatherBlocks blocks share a tile.
constexpr int kGatherBlocks = 8;

template <class Config>
__device__ __forceinline__ void gather_parts(const BwdParams& p, const KeyGrid& grid, int block) {
  using Element = typename Config::Element;
  constexpr int kQuads = Config::kHeadDim / 8;  // of a thread, of dK or dV
  const int cut = block / kGatherBlocks;
  const Tile tile = find_tile(p.problem, grid, false, uint32_t(grid.whole + cut));
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const BwdWorkspace<Config> workspace(p);
#pragma unroll
  for (int quad = block % kGatherBlocks; quad < 2 * kQuads; quad += kGatherBlocks) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int part = 0; part < grid.parts; ++part) {
      const float4 v = workspace.piece(cut * grid.parts + part, group)[quad * kWarpgroup + thread];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const bool is_dk = quad < kQuads;
    const View& view = is_dk ? p.dk : p.dv;
    const float by = is_dk ? float(p.problem.scale) : 1.f;
    const int columns = is_dk ? p.problem.head_dim : p.problem.head_dim_v;
    const int row = tile.row + 64 * group + 16 * (thread / 32) + lane / 4,
              column = quad % kQuads * 8 + 2 * (lane % 4);
    const auto put = [&](int at, float x, float y) {
      if (at < tile.k_len && column < columns)
        *reinterpret_cast<uint32_t*>(row_pointer<Element>(view, tile.batch, tile.k_row + at, tile.head) +
                                     column) = ptx::pack_pair<Element>(x * by, y * by);
    };
    put(row, sum.x, sum.y);
    put(row + 8, sum.z, sum.w);
  }
}

// attention_bwd_sm90_finish: dQ = scale times the accumulator, back in rows through shared memory, so that
// each row's pieces are written 16 bytes at a time. One block per query tile; memory, 6 bytes an element.
// Blocks behind them add up the parts of split key tiles.
template <class Config>
__global__ void __launch_bounds__(2 * kWarpgroup)
    attention_bwd_sm90_finish_kernel(const __grid_constant__ BwdParams p,
                                     const __grid_constant__ TileGrid grid,
                                     const __grid_constant__ KeyGrid keys) {
  using Element = typename Config::Element;
  ptx::wait_for_previous_grid();
  if (const int behind = int(blockIdx.x) - grid.tiles * grid.groups; behind >= 0)
    return gather_parts<Config>(p, keys, behind);
  constexpr int kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kPieces = Config::kHeadDim / 8;  // of 16 bytes in a row
  __shared__ __align__(16) unsigned char memory[kM * kPieces * 16];
  const Tile tile = find_tile(p.problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const float scale = float(p.problem.scale);
  const Visible visible(p.problem, tile);
  const int low = visible.low(tile.row);
  const bool seen = low < tile.k_len && low / kN * kN < visible.high(tile.row + kM - 1, tile.k_len);
  const BwdWorkspace<Config> workspace(p);
  const float4* const sum = reinterpret_cast<const float4*>(workspace.sum(
                                workspace.first_tile(p.problem, tile, tile.head) + tile.row / kM, group)) +
                            thread;
  const uint32_t rows = ptx::shared_address(memory);
  const auto place = [&](int row, int piece) { return rows + (row * kPieces + (piece ^ (row & 7))) * 16; };
#pragma unroll
  for (int j = 0; j < Config::kSumRegs / 4; ++j) {
    const float4 v = seen ? sum[j * kWarpgroup] : make_float4(0.f, 0.f, 0.f, 0.f);
    const int row = (kM == 64 ? 0 : 64 * group) + 16 * (thread / 32) + lane / 4;
    const int piece = (kM == 64 ? Config::kSumColumns / 8 * group : 0) + j;
    ptx::store_shared(place(row, piece) + 4 * (lane % 4), ptx::pack_pair<Element>(v.x * scale, v.y * scale));
    ptx::store_shared(place(row + 8, piece) + 4 * (lane % 4),
                      ptx::pack_pair<Element>(v.z * scale, v.w * scale));
  }
  __syncthreads();
#pragma unroll
  for (int i = int(threadIdx.x); i < kM * kPieces; i += 2 * kWarpgroup) {
    const int row = i / kPieces, piece = i % kPieces;
    if (tile.row + row < tile.q_len && piece * 8 < p.problem.head_dim)
      *reinterpret_cast<uint4*>(
          row_pointer<Element>(p.dq, tile.batch, tile.q_row + tile.row + row, tile.head) + piece * 8) =
          ptx::load_shared_16(place(row, piece));
  }
}

}  // namespace plab::ops::attention::sm90
