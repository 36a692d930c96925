// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"
#include "ops/attention/softmax.cuh"

// Tiles in shared memory for the mma.sync path: rows of kCols 16-bit elements, cut into 16-byte chunks, chunk
// c of row r stored at c ^ (r % 8). The eight rows an ldmatrix phase reads then lie in eight different bank
// groups.
namespace plab::ops::attention {

template <int kCols>
__device__ __forceinline__ uint32_t chunk_bytes(int row, int chunk) {
  return uint32_t(row * kCols * 2 + ((chunk ^ (row & 7)) << 4));
}

// The same chunk in two steps, for addresses in unrolled loops: `start` is chunk `odd` (0 or 1) of a row, and
// chunk odd + 2k of that row lies at chunk_pair(start, k). One XOR with a constant instead of a register per
// address.
template <int kCols>
__device__ __forceinline__ uint32_t chunk_start(uint32_t tile, int row, int odd) {
  return tile + uint32_t(row * kCols * 2 + ((odd ^ (row & 7)) << 4));
}
__device__ __forceinline__ uint32_t chunk_pair(uint32_t start, int k) {
  return (start ^ uint32_t((k & 3) << 5)) + uint32_t((k >> 2) * 128);
}

// Rows >= rows_valid and columns >= cols_valid arrive as zeros: head dims below kCols need no copy, and no
// garbage (a NaN of a neighbouring sequence) ever meets a probability of 0.
// kWhole: tiles without such rows and columns are copied without a test per chunk, by code and registers of
// their own.
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

// Columns 16 n to 16 n + 15 of acc += A B in each band: one fragment of A a band, and one of B for all.
template <class Element, int kBands, int kRegs>
__device__ __forceinline__ void multiply_fragment(float (&acc)[kBands][kRegs], const uint32_t (&a)[kBands][4],
                                                  const uint32_t (&b)[4], int n) {
#pragma unroll
  for (int m = 0; m < kBands; ++m) {
    float* d = acc[m] + 8 * n;
    ptx::mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a[m], b[0], b[1]);
    ptx::mma_m16n8k16<Element>(d[4], d[5], d[6], d[7], a[m], b[2], b[3]);
  }
}

// The products below take tiles and offsets: a second tile that lies a constant behind the first is read
// through the first one's addresses, which a thread then holds once.
//
// acc[16 x kN] += A[16 x kCols] B[kN x kCols]ᵀ for kBands bands of 16 rows that share every B fragment; both
// row-major in shared memory, this warp's A rows start at row_a.
template <class Element, int kBands, int kN, int kCols>
__device__ __forceinline__ void product_nt(float (&acc)[kBands][kN / 2], uint32_t a_tile, int row_a,
                                           uint32_t b_tile, int a_offset = 0, int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start = chunk_start<kCols>(a_tile, row_a + (lane & 15), lane >> 4);
  const uint32_t b_start = chunk_start<kCols>(b_tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4(a[m], chunk_pair(a_start, k) + m * 16 * kCols * 2 + a_offset);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, chunk_pair(b_start, k) + n * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// acc[16 x kCols] += A[16 x kK] B[kK x kCols] per band: A is an accumulator rounded to 16 bits on the way, B
// row-major in shared memory.
template <class Element, int kBands, int kK, int kCols>
__device__ __forceinline__ void product_nn(float (&acc)[kBands][kCols / 2], const float (&s)[kBands][kK / 2],
                                           uint32_t b_tile) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t b_start = chunk_start<kCols>(b_tile, lane & 15, lane >> 4);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m) pack_operand<Element>(a[m], s[m], k);
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// The start of a range of columns in a row whose chunk_start is `start`; `column` is a multiple of the
// range's width, and that a power of two from 16 on, so that chunk_pair steps on from there.
__device__ __forceinline__ uint32_t column_start(uint32_t start, int column) {
  return chunk_pair(start, column / 16);
}

// acc[16 x kN] += A[16 x 16 kSteps] B per band: A is packed accumulators, B the kN columns from `column` on
// of rows in shared memory.
template <class Element, int kN, int kCols, int kBands, int kPacked>
__device__ __forceinline__ void product_packed(float (&acc)[kBands][kN / 2],
                                               const uint32_t (&packed)[kBands][kPacked], uint32_t b_tile,
                                               int column, int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column);
#pragma unroll
  for (int k = 0; k < kPacked / 4; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m][i] = packed[m][4 * k + i];
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// The same with A in shared memory: kK columns from column_a on of a tile with kColsA, rows from row_a on.
template <class Element, int kBands, int kK, int kColsA, int kN, int kCols>
__device__ __forceinline__ void product_shared(float (&acc)[kBands][kN / 2], uint32_t a_tile, int row_a,
                                               int column_a, uint32_t b_tile, int column, int a_offset = 0,
                                               int b_offset = 0) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start =
      column_start(chunk_start<kColsA>(a_tile, row_a + (lane & 15), lane >> 4), column_a);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4(a[m], chunk_pair(a_start, k) + m * 16 * kColsA * 2 + a_offset);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2 + b_offset);
      multiply_fragment<Element>(acc, a, b, n);
    }
  }
}

// acc[16 x kN] += A^T B per band, A[kK x kColsA] and B[kK x kCols] rows in shared memory: of A the columns
// from column_a on, of B those from column_b on.
template <class Element, int kK, int kColsA, int kN, int kCols, int kBands>
__device__ __forceinline__ void product_tn(float (&acc)[kBands][kN / 2], uint32_t a_tile, int column_a,
                                           uint32_t b_tile, int column_b) {
  const int lane = int(threadIdx.x & 31);
  const uint32_t a_start =
      column_start(chunk_start<kColsA>(a_tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1), column_a);
  const uint32_t b_start = column_start(chunk_start<kCols>(b_tile, lane & 15, lane >> 4), column_b);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4_trans(a[m], chunk_pair(a_start, m) + k * 16 * kColsA * 2);
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, chunk_pair(b_start, n) + k * 16 * kCols * 2);
      multiply_fragment<Element>(acc, a, b, n);
    }
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

// Puts a warp's 16 accumulator rows (times factor[h]) as 16-bit elements into rows row0 .. row0 + 15 of a
// tile, from a column on.
template <class Element, int kCols, int kRegs>
__device__ __forceinline__ void stage_rows(uint32_t smem, int row0, const float (&acc)[kRegs],
                                           const float (&factor)[2], int column0 = 0) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < kRegs; i += 2) {
    const int h = i / 2 % 2, row = row0 + lane / 4 + 8 * h;
    const uint32_t pair = ptx::pack_pair<Element>(acc[i] * factor[h], acc[i + 1] * factor[h]);
    ptx::store_shared(smem + chunk_bytes<kCols>(row, column0 / 8 + i / 4) + 4 * (lane % 4), pair);
  }
}

// Shared to global memory, 16 bytes at a time, within the valid rows and columns. Call after a barrier.
template <int kRows, int kCols, int kThreads, class Element>
__device__ __forceinline__ void store_tile(Element* global, int64_t stride, uint32_t smem, int rows_valid,
                                           int cols_valid) {
  constexpr int kChunks = kCols / 8;
#pragma unroll 4
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int index = i * kThreads + int(threadIdx.x), row = index / kChunks, chunk = index % kChunks;
    if (row < rows_valid && chunk * 8 < cols_valid)
      *reinterpret_cast<uint4*>(global + row * stride + chunk * 8) =
          ptx::load_shared_16(smem + chunk_bytes<kCols>(row, chunk));
  }
}

// A stage of the backwards that walk over queries: Q, dO, and LSE and delta of kTileQ rows from `first` on.
template <class Config>
__device__ __forceinline__ void load_query_stage(const BwdParams& p, const Tile& tile, uint32_t stage,
                                                 int head, int first) {
  using Element = typename Config::Element;
  constexpr int kM = Config::kTileQ, kD = Config::kHeadDim, kThreads = Config::kThreads;
  static_assert(2 * kM <= kThreads);
  const int rows = tile.q_len - first, dim = p.problem.head_dim;
  const int64_t row = tile.q_row + first;
  load_tile<kM, kD, kThreads>(stage, row_pointer<const Element>(p.q, tile.batch, row, head), p.q.row, rows,
                              dim);
  load_tile<kM, kD, kThreads>(stage + Config::kBytesQ,
                              row_pointer<const Element>(p.dout, tile.batch, row, head), p.dout.row, rows,
                              dim);
  const int64_t stat = tile.batch * p.rows.batch + head * p.rows.head + row;
  if (int(threadIdx.x) < 2 * kM) {
    const int which = int(threadIdx.x) / kM, i = int(threadIdx.x) % kM;
    const float* from = static_cast<const float*>(which ? p.delta : p.lse_log2);
    ptx::cp_async_4(stage + 2 * Config::kBytesQ + threadIdx.x * 4, from + stat + i, i < rows);
  }
  ptx::cp_async_commit();
}

}  // namespace plab::ops::attention
