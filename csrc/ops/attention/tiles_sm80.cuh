// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/softmax.cuh"

// Tiles in shared memory for the mma.sync path: rows of kCols 16-bit elements, cut into 16-byte chunks, chunk c of row r
// stored at c ^ (r % 8). The eight rows an ldmatrix phase reads then lie in eight different bank groups.
namespace plab::ops::attention {

template <int kCols>
__device__ __forceinline__ uint32_t chunk_bytes(int row, int chunk) {
  return uint32_t(row * kCols * 2 + ((chunk ^ (row & 7)) << 4));
}

// Rows >= rows_valid and columns >= cols_valid arrive as zeros: head dims below kCols need no copy, and no garbage
// (a NaN of a neighbouring sequence) ever meets a probability of 0.
template <int kRows, int kCols, int kThreads, class Element>
__device__ __forceinline__ void load_tile(uint32_t smem, const Element* global, int64_t stride, int rows_valid,
                                          int cols_valid) {
  constexpr int kChunks = kCols / 8;
  static_assert(kRows * kChunks % kThreads == 0, "every thread copies the same number of chunks");
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int index = i * kThreads + int(threadIdx.x), row = index / kChunks, chunk = index % kChunks;
    const bool valid = row < rows_valid && chunk * 8 < cols_valid;
    ptx::cp_async_16(smem + chunk_bytes<kCols>(row, chunk), valid ? global + row * stride + chunk * 8 : global, valid);
  }
}

// acc[16 x kN] += A[16 x kCols] B[kN x kCols]ᵀ, both row-major in shared memory; this warp's A rows start at row_a.
template <class Element, int kN, int kCols>
__device__ __forceinline__ void product_nt(float (&acc)[kN / 2], uint32_t a_tile, int row_a, uint32_t b_tile) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    uint32_t a[4];
    ptx::ldmatrix_x4(a, a_tile + chunk_bytes<kCols>(row_a + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, b_tile + chunk_bytes<kCols>(16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
      float* d = acc + 8 * n;
      ptx::mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a, b[0], b[1]);
      ptx::mma_m16n8k16<Element>(d[4], d[5], d[6], d[7], a, b[2], b[3]);
    }
  }
}

// The same for kBands bands of 16 rows, which share every B fragment.
template <class Element, int kBands, int kN, int kCols>
__device__ __forceinline__ void product_nt(float (&acc)[kBands][kN / 2], uint32_t a_tile, int row_a, uint32_t b_tile) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < kCols / 16; ++k) {
    uint32_t a[kBands][4];
#pragma unroll
    for (int m = 0; m < kBands; ++m)
      ptx::ldmatrix_x4(a[m], a_tile + chunk_bytes<kCols>(row_a + 16 * m + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < kN / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4(b, b_tile + chunk_bytes<kCols>(16 * n + (lane & 7) + ((lane >> 4) << 3), 2 * k + ((lane >> 3) & 1)));
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        float* d = acc[m] + 8 * n;
        ptx::mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a[m], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(d[4], d[5], d[6], d[7], a[m], b[2], b[3]);
      }
    }
  }
}

// acc[16 x kCols] += A[16 x kK] B[kK x kCols] per band: A in registers, B row-major in shared memory.
template <class Element, int kBands, int kK, int kCols>
__device__ __forceinline__ void product_nn(float (&acc)[kBands][kCols / 2], const uint32_t (&a)[kBands][kK / 16][4],
                                           uint32_t b_tile) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < kK / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kCols / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_trans(b, b_tile + chunk_bytes<kCols>(16 * k + (lane & 15), 2 * n + (lane >> 4)));
#pragma unroll
      for (int m = 0; m < kBands; ++m) {
        float* d = acc[m] + 8 * n;
        ptx::mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a[m][k], b[0], b[1]);
        ptx::mma_m16n8k16<Element>(d[4], d[5], d[6], d[7], a[m][k], b[2], b[3]);
      }
    }
  }
}

// Puts a warp's 16 accumulator rows (times factor[h]) as 16-bit elements into rows row0 .. row0 + 15 of a tile.
template <class Element, int kCols>
__device__ __forceinline__ void stage_rows(uint32_t smem, int row0, const float (&acc)[kCols / 2],
                                           const float (&factor)[2]) {
  const int lane = int(threadIdx.x & 31);
#pragma unroll
  for (int i = 0; i < kCols / 2; i += 2) {
    const int h = i / 2 % 2, row = row0 + lane / 4 + 8 * h;
    const uint32_t pair = ptx::pack_pair<Element>(acc[i] * factor[h], acc[i + 1] * factor[h]);
    ptx::store_shared(smem + chunk_bytes<kCols>(row, i / 4) + 4 * (lane % 4), pair);
  }
}

// Shared to global memory, 16 bytes at a time, within the valid rows and columns. Call after a barrier.
template <int kRows, int kCols, int kThreads, class Element>
__device__ __forceinline__ void store_tile(Element* global, int64_t stride, uint32_t smem, int rows_valid, int cols_valid) {
  constexpr int kChunks = kCols / 8;
#pragma unroll 4
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int index = i * kThreads + int(threadIdx.x), row = index / kChunks, chunk = index % kChunks;
    if (row < rows_valid && chunk * 8 < cols_valid)
      *reinterpret_cast<uint4*>(global + row * stride + chunk * 8) = ptx::load_shared_16(smem + chunk_bytes<kCols>(row, chunk));
  }
}

}  // namespace plab::ops::attention
