// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

// The two ways in which O leaves the Hopper forward: through shared memory, where TMA fetches it, and
// straight from registers.
namespace plab::ops::attention::sm90 {

// Puts this warp's 16 accumulator rows, from row `band` of a tile of kRows rows on, times factor[h], into the
// tile as 16-bit elements: four 8 x 8 matrices an instruction.
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void stage_band(uint32_t tile, int band, const float (&acc)[kDim / 2],
                                           const float (&factor)[2]) {
  const int lane = int(threadIdx.x & 31), row = band + lane % 16;
  const uint32_t at = tile + row * 128 + (((lane / 16) ^ (row & 7)) << 4);
#pragma unroll
  for (int piece = 0; piece < kDim / 8; piece += 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * (piece + i / 2) + 2 * (i % 2);
      words[i] = ptx::pack_pair<Element>(acc[e] * factor[i % 2], acc[e + 1] * factor[i % 2]);
    }
    ptx::stmatrix_x4((at ^ ((piece % 8) << 4)) + (piece / 8) * kRows * 128, words);
  }
}

// Writes one of this thread's two rows (h) of the accumulator, times `factor`. The four lanes of a row
// exchange what they hold of four pieces of 8 columns, so that each writes a whole piece, 16 bytes.
template <class Element, int kDim>
__device__ __forceinline__ void write_row(Element* row, const float (&acc)[kDim / 2], int h, float factor,
                                          bool valid, int columns) {
  const int place = int(threadIdx.x & 3);
  const bool odd = place & 1, high = place & 2;
#pragma unroll
  for (int piece = 0; piece < kDim / 8; piece += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * (piece + i) + 2 * h;
      w[i] = ptx::pack_pair<Element>(acc[e] * factor, acc[e + 1] * factor);
    }
    // A 4 x 4 transposition: halves of pairs change places, then pairs.
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    (odd ? w[0] : w[1]) = a;
    (odd ? w[2] : w[3]) = b;
    a = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
    b = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
    (high ? w[0] : w[2]) = a;
    (high ? w[1] : w[3]) = b;
    const int column = 8 * (piece + place);
    if (valid && column < columns)
      *reinterpret_cast<uint4*>(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

}  // namespace plab::ops::attention::sm90
