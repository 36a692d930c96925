// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

// dQ's fp32 sum, to which the blocks of all key tiles add, and the kernel that turns it into rows.
namespace plab::ops::attention::sm90 {

// dQ is summed in fp32 in the order of the accumulator's registers, so that a warp adds 512 consecutive bytes
// at a time. Float4 `quad` of thread `thread` of warpgroup `group` in tile `tile`:
template <class Config>
__device__ __forceinline__ int64_t dq_sum_offset(int64_t tile, int group, int quad, int thread) {
  return (((tile * 2 + group) * (Config::kSumRegs / 4) + quad) * kWarpgroup + thread) * 4;
}

// The number of query tile 0 of a head in that sum. With cu_seqlens sequences share no tile: one of n rows
// fills at most n / kTileQ + 1.
template <class Config>
__host__ __device__ __forceinline__ int sum_tiles(const Problem& p) {
  return int(p.cu_seqlens_q ? p.q_len / Config::kTileQ + p.batch
                            : (p.q_len + Config::kTileQ - 1) / Config::kTileQ);
}
template <class Config>
__device__ __forceinline__ int64_t first_sum_tile(const Problem& p, const Tile& tile, int head) {
  return (int64_t{tile.batch} * p.heads + head) * sum_tiles<Config>(p) + tile.q_row / Config::kTileQ +
         tile.sequence;
}

// attention_bwd_sm90_finish: dQ = scale dq_sum, back in rows through shared memory, so that each row's pieces
// are written 16 bytes at a time. One block per query tile; memory, 6 bytes an element.
template <class Config>
__global__ void __launch_bounds__(2 * kWarpgroup)
    attention_bwd_sm90_finish_kernel(const __grid_constant__ BwdParams p,
                                     const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kM = Config::kTileQ, kPieces = Config::kHeadDim / 8;  // of 16 bytes in a row
  __shared__ __align__(16) unsigned char memory[kM * kPieces * 16];
  const Tile tile = find_tile(p.problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const float scale = float(p.problem.scale);
  const int64_t sum_tile = first_sum_tile<Config>(p.problem, tile, tile.head) + tile.row / kM;
  const float* sum = p.dq_sum + dq_sum_offset<Config>(sum_tile, group, 0, thread);
  const uint32_t rows = ptx::shared_address(memory);
  const auto place = [&](int row, int piece) { return rows + (row * kPieces + (piece ^ (row & 7))) * 16; };
#pragma unroll
  for (int j = 0; j < Config::kSumRegs / 4; ++j) {
    const float4 v = *reinterpret_cast<const float4*>(sum + j * 4 * kWarpgroup);
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
