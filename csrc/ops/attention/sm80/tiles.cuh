// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "ops/attention/softmax.cuh"
#include "ops/attention/tile_scheduler.cuh"
#include "ops/attention/warp_gemm.cuh"

// Tiles in shared memory (warp_gemm.cuh): cp.async fills them, and accumulators are stored to them.
namespace plab::ops::attention::sm80 {

// Rows >= rows_valid and columns >= cols_valid arrive as zeros. So head dims below kCols need no copy, and a NaN
// of a neighbouring sequence is never multiplied by a probability of 0.
// kWhole: tiles without such rows and columns are copied by separate code without a test per chunk, which needs
// registers of its own.
template <int kRows, int kCols, int kThreads, bool kWhole = true, class Element>
__device__ __forceinline__ void load_tile(uint32_t smem, const Element* global, int64_t stride,
                                          int rows_valid, int cols_valid) {
  constexpr int kChunks = kCols / 8, kStep = kThreads / kChunks;  // kStep rows at a time
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0,
                "every thread copies the same number of chunks");
  const int row0 = int(threadIdx.x) / kChunks, chunk = int(threadIdx.x) % kChunks;
  const Element* source = global + row0 * stride + chunk * 8;
  const int rows_left = chunk * 8 < cols_valid ? rows_valid - row0 : 0;
  if (kWhole && rows_valid >= kRows && cols_valid == kCols) {
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i) {
      ptx::cp_async_16(smem + chunk_bytes<kCols>(row0 + i * kStep, chunk), source, true);
      source += kStep * stride;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRows / kStep; ++i) {
    ptx::cp_async_16(smem + chunk_bytes<kCols>(row0 + i * kStep, chunk), source, i * kStep < rows_left);
    source += kStep * stride;
  }
}

// Packed fragments (as pack_operand packs them) into a tile, this warp's first row and column given.
template <int kCols, int kBands, int kPacked>
__device__ __forceinline__ void store_fragments(uint32_t smem, int row0, int column0,
                                                const uint32_t (&packed)[kBands][kPacked], int offset = 0) {
  const int lane = int(threadIdx.x & 31);
#if __CUDA_ARCH__ >= 900
  const uint32_t start = column_start(chunk_start<kCols>(smem, row0 + (lane & 15), lane >> 4), column0);
#pragma unroll
  for (int m = 0; m < kBands; ++m)
#pragma unroll
    for (int k = 0; k < kPacked / 4; ++k) {
      const uint32_t quad[4] = {packed[m][4 * k], packed[m][4 * k + 1], packed[m][4 * k + 2],
                                packed[m][4 * k + 3]};
      ptx::stmatrix_x4(chunk_pair(start, k) + 16 * m * kCols * 2 + offset, quad);
    }
#else
  const uint32_t start = column_start(chunk_start<kCols>(smem, row0 + lane / 4, 0), column0) + 4 * (lane % 4);
#pragma unroll
  for (int m = 0; m < kBands; ++m)
#pragma unroll
    for (int i = 0; i < kPacked; ++i)
      ptx::store_shared(
          (chunk_pair(start, i / 4) ^ uint32_t((i / 2 % 2) << 4)) + (16 * m + i % 2 * 8) * kCols * 2 + offset,
          packed[m][i]);
#endif
}

// A stage of the backward kernels that walk over queries: Q, dO, and LSE and delta of kTileQ rows from `first` on.
template <class Config>
__device__ __forceinline__ void load_query_stage(const BwdParams& p, const Tile& tile, uint32_t stage,
                                                 int head, int first) {
  using Element = typename Config::Element;
  constexpr int kM = Config::kTileQ, kD = Config::kHeadDim, kThreads = Config::kThreads;
  static_assert(2 * kM <= kThreads);
  const int rows = tile.q_len - first, dim = p.problem.head_dim, dim_v = p.problem.head_dim_v;
  const int64_t row = tile.q_row + first;
  load_tile<kM, kD, kThreads>(stage, row_pointer<const Element>(p.q, tile.batch, row, head), p.q.row, rows,
                              dim);
  load_tile<kM, kD, kThreads>(stage + Config::kBytesQ,
                              row_pointer<const Element>(p.dout, tile.batch, row, head), p.dout.row, rows,
                              dim_v);
  const int64_t stat = tile.batch * p.rows.batch + head * p.rows.head + row;
  if (int(threadIdx.x) < 2 * kM) {
    const int which = int(threadIdx.x) / kM, i = int(threadIdx.x) % kM;
    const float* from = static_cast<const float*>(which ? p.delta : p.lse_log2);
    ptx::cp_async_4(stage + 2 * Config::kBytesQ + threadIdx.x * 4, from + stat + i, i < rows);
  }
  ptx::cp_async_commit();
}

}  // namespace plab::ops::attention::sm80
