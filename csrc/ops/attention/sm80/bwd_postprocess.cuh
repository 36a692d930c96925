// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm80/epilogue.cuh"

// The fp32 accumulator of dQ, to which the blocks of all key tiles add, and the kernel that converts it to
// rows.
namespace plab::ops::attention::sm80 {

// The sum is stored in the order of the accumulator's registers: register `i` of a lane is at
// accum_lane() + 32 i, so a warp adds to 128 consecutive bytes at a time.
__device__ __forceinline__ int accum_lane() { return int(threadIdx.x & 31); }

// Query tile 0 of a head in the sum. With cu_seqlens sequences share no tile: a sequence of n rows takes at most
// n / kTileQ + 1 tiles.
template <class Config>
__host__ __device__ __forceinline__ int accum_tiles(const Problem& p) {
  return int(p.cu_seqlens_q ? p.q_len / Config::kTileQ + p.batch
                            : (p.q_len + Config::kTileQ - 1) / Config::kTileQ);
}
template <class Config>
__device__ __forceinline__ int64_t first_accum_tile(const Problem& p, const Tile& tile, int head) {
  return (int64_t{tile.batch} * p.heads + head) * accum_tiles<Config>(p) + tile.q_row / Config::kTileQ +
         tile.sequence;
}

// attention_bwd_sum_rows_sm80: dQ = scale dq_accum, back in rows through shared memory, so that rows are
// written 16 bytes at a time. One block per query tile; memory, 6 bytes an element.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    attention_bwd_sum_rows_sm80_kernel(const __grid_constant__ BwdParams p,
                                       const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ;
  __shared__ __align__(1024) unsigned char memory[Config::kBytesQ];
  const uint32_t rows = ptx::shared_address(memory);
  const Tile tile = find_tile(p.problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int warp = int(threadIdx.x / 32);
  const int64_t accum_tile = first_accum_tile<Config>(p.problem, tile, tile.head) + tile.row / kM;
  const float* sum =
      p.dq_accum + (accum_tile * Config::kWarps + warp) * (Config::kSumRegs * 32) + accum_lane();
  const float scale = float(p.problem.scale), scales[2] = {scale, scale};
#pragma unroll
  for (int b = 0; b < Config::kSumRows / 16; ++b) {
    float dq[Config::kSumColumns / 2];
#pragma unroll
    for (int i = 0; i < Config::kSumColumns / 2; ++i) dq[i] = sum[(b * (Config::kSumColumns / 2) + i) * 32];
    stage_rows<Element, kD>(rows, warp % Config::kSumWarpsQ * Config::kSumRows + 16 * b, dq, scales,
                            warp / Config::kSumWarpsQ * Config::kSumColumns);
  }
  __syncthreads();
  store_tile<kM, kD, Config::kThreads>(
      row_pointer<Element>(p.dq, tile.batch, tile.q_row + tile.row, tile.head), p.dq.row, rows,
      tile.q_len - tile.row, p.problem.head_dim);
}

}  // namespace plab::ops::attention::sm80
