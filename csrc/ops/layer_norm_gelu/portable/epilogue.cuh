// SPDX-License-Identifier: Apache-2.0
// The epilogue of a row, and of the sums over all rows.
//
//   forward    finish_row: GELU of the normalised row, stored
//   backward   add_warps, store_sums: a block stores its sums for dW and dB; add_partials_kernel adds the
//              sums of all blocks
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "ops/layer_norm_gelu/portable/load.cuh"
#include "ops/layer_norm_gelu/portable/statistics.cuh"

namespace plab::ops::layer_norm_gelu {

/// y of this thread's vector i.
template <class Config, bool kCentred>
__device__ __forceinline__ void finish_vec(const typename Config::Tile& tile,
                                           const cuda::Vec<typename Config::Element>& vec, int i,
                                           const RowStatistics& s,
                                           const float (&weight)[Config::Tile::kVecSize],
                                           const float (&bias)[Config::Tile::kVecSize],
                                           typename Config::Element* y) {
  float f[Config::Tile::kVecSize];
  cuda::unpack(vec, f);
#pragma unroll
  for (int j = 0; j < Config::Tile::kVecSize; ++j) {
    const float x = kCentred ? f[j] - s.centre : f[j];
    const float h = fmaf(x, s.slope, Config::kTwoPasses ? fmaf(x, s.slope_rest, s.offset) : s.offset);
    f[j] = cuda::gelu<typename Config::Element, Config::kForm>(fmaf(h, weight[j], bias[j]));
  }
  tile.store_vec(y, i, f);
}

/// y of this thread's elements. 16-bit rows far from zero are rare: their path is optimised for code
/// size.
template <class Config, class Rows>
__device__ __forceinline__ void finish_row(const typename Config::Tile& tile, const Rows& ring, RingSlot slot,
                                           const RowStatistics& s,
                                           const typename Config::WeightsOfRow& weights,
                                           typename Config::Element* y) {
  using Tile = typename Config::Tile;
  constexpr int kFarUnroll = std::is_same_v<Rows, RowInRegisters<Tile>> ? Tile::kVecs : 1;
  constexpr bool kMayBeFar = sizeof(typename Config::Element) == 2;
  float weight[Tile::kVecSize], bias[Tile::kVecSize];
  if (kMayBeFar && s.centred) {
#pragma unroll kFarUnroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if (tile.skips(i)) continue;
      weights.reload(i, weight, bias);
      finish_vec<Config, true>(tile, ring.vec(slot, i), i, s, weight, bias, y);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    if (tile.skips(i)) continue;
    weights.get(i, weight, bias);
    finish_vec<Config, !kMayBeFar>(tile, ring.vec(slot, i), i, s, weight, bias, y);
  }
}

/// Adds the sums of the block's warps if each warp has its own rows; true in the threads that hold the total.
template <class Config>
__device__ bool add_warps(typename Config::Tile::Floats& sums, float* shared) {
  using Tile = typename Config::Tile;
  if constexpr (!Config::Group::kIsWarp) return true;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();  // rings and weights, or the sums of the call before, are no longer read
#pragma unroll
  for (int e = 0; e < Tile::kElements; ++e)
    shared[(warp * Tile::kElements + e) * 32 + lane] = sums[e / Tile::kVecSize][e % Tile::kVecSize];
  __syncthreads();
  if (warp != 0) return false;
#pragma unroll
  for (int e = 0; e < Tile::kElements; ++e) {
    for (int w = 1; w < Config::kWarps; ++w)
      sums[e / Tile::kVecSize][e % Tile::kVecSize] += shared[(w * Tile::kElements + e) * 32 + lane];
  }
  return true;
}

/// Writes this thread's columns: `row` has an element, or an fp32, for each column of the matrix.
template <class Tile, class Out>
__device__ void store_sums(const Tile& tile, const typename Tile::Floats& sums, Out* row) {
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    constexpr bool kWholeVecs = Tile::kAccess == Access::kExact || Tile::kAccess == Access::kVector;
    if (tile.skips(i)) continue;
    if constexpr (kWholeVecs && std::is_same_v<Out, float>) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; j += 4) {
        if (tile.owns(i, 0))
          *reinterpret_cast<float4*>(row + tile.column(i, j)) =
              make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        if (tile.owns(i, j)) row[tile.column(i, j)] = cuda::from_float<Out>(sums[i][j]);
      }
    }
  }
}

/// Adds the blocks' sums: column by column, always in the same order.
/// Mapping: a block has kColumns columns. A warp reads 32 / kColumns rows at a time, and rows are distributed over
/// the warps; then the warps' sums are added. Short rows use few columns per block, so that there are enough blocks.
/// Bytes: partial_rows * 8 d, from L2.
template <class Element, int kColumns>
__global__ void __launch_bounds__(1024) add_partials_kernel(const float* partial, int64_t partial_rows,
                                                            int64_t cols, Element* dweight, Element* dbias) {
  constexpr int kRowsOfWarp = 32 / kColumns;
  static __shared__ float sums[32 * kRowsOfWarp][kColumns + 1];
  const int at = threadIdx.x % kColumns, first = threadIdx.x / kColumns, step = blockDim.x / kColumns;
  const int64_t width = 2 * cols;
  const int64_t column = blockIdx.x * int64_t{kColumns} + at;
  cuda::ptx::wait_for_previous_grid();
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = first; row < partial_rows; row += step) sum += __ldcg(partial + row * width + column);
  }
  sums[first][at] = sum;
  for (int half = step / 2; half > 0; half /= 2) {
    __syncthreads();
    if (first < half) sums[first][at] += sums[first + half][at];
  }
  if (first != 0 || column >= width) return;
  if (column < cols) {
    dweight[column] = cuda::from_float<Element>(sums[0][at]);
  } else {
    dbias[column - cols] = cuda::from_float<Element>(sums[0][at]);
  }
}

/// Columns and threads of a block. They follow from the number of columns alone, and so does the order of the
/// additions.
constexpr int64_t kFewColumns = 2048, kManyColumns = 4096;

}  // namespace plab::ops::layer_norm_gelu
