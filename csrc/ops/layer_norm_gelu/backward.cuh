// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward: dX, and the sums dW, dB over all rows.
// With H = (X - mean) rstd and dZ = dY gelu'(H W + B):  dW = sum dZ H,  dB = sum dZ,  dH = dZ W,
//      dX = rstd (dH - avg(dH) - H avg(dH H)), averages over a row.
// Mapping   one group of threads per row as in the forward, the next row of X and dY on its way; a thread
// keeps the sums for
//           its columns in registers over all its rows. They leave once per block, and a second kernel adds
//           the blocks' sums in a fixed order: no atomics, the same bits in every run.
// Bytes     rows * (3 d e + 8) + 2 d e, e = bytes per element, and 16 d bytes per block for the sums (L2).
// Flops about 40
//           per element.
// Roof      memory: H200 feeds 0.71e12 bf16 elements/s, 42 instruction slots for each; about 30 are used.
// Contract  layer_norm_gelu.h; kExact and kVector: rows start at 16 bytes and d is a multiple of a vector.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/reduce.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads as in ForwardConfig; kWarps: of a block whose warps have a row each.
template <class Tile_, class Group_, int kResidentThreads_, int kWarps_, Weights kWeights_, GeluForm kForm_>
struct BackwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr int kWarps = kWarps_;
  static constexpr Weights kWeights = kWeights_;
  static constexpr GeluForm kForm = kForm_;
};

/// Writes the block's sums for this thread's columns. Where warps have rows of their own, the first warp adds
/// the others'.
template <class Config>
__device__ void store_sums(const typename Config::Tile& tile, const typename Config::Tile::Floats& sums,
                           float* out) {
  using Tile = typename Config::Tile;
  if constexpr (Config::Group::kIsWarp) {
    __shared__ float others[Config::kWarps][Tile::kElements][cuda::kWarpSize];
    const int warp = threadIdx.x / cuda::kWarpSize, lane = threadIdx.x % cuda::kWarpSize;
    __syncthreads();  // the buffer may still be read from the call before
#pragma unroll
    for (int e = 0; e < Tile::kElements; ++e)
      others[warp][e][lane] = sums[e / Tile::kVecSize][e % Tile::kVecSize];
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int e = 0; e < Tile::kElements; ++e) {
      float total = others[0][e][lane];
      for (int w = 1; w < Config::kWarps; ++w) total += others[w][e][lane];
      const int i = e / Tile::kVecSize, j = e % Tile::kVecSize;
      if (tile.owns(i, j)) out[tile.column(i, j)] = total;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        if (tile.owns(i, j)) out[tile.column(i, j)] = sums[i][j];
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    backward_kernel(const __grid_constant__ BackwardParams params) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  __shared__ typename Config::Group::Storage storage;
  typename Config::Group group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const auto* x = static_cast<const Element*>(params.x);
  const auto* dy = static_cast<const Element*>(params.dy);
  const auto* means = static_cast<const float*>(params.mean);
  const auto* rstds = static_cast<const float*>(params.rstd);
  const float inverse_cols = 1.0f / static_cast<float>(params.cols);

  const int64_t rows = params.rows;
  int64_t row = group.index();
  typename Tile::Packed packed_x, packed_dy;
  float next_mean = 0.0f, next_rstd = 0.0f;
  auto prefetch = [&](int64_t r) {
    if (r >= rows) return;
    tile.load(x + r * params.x_row_stride, packed_x);
    tile.load(dy + r * params.dy_row_stride, packed_dy);
    next_mean = __ldg(means + r);
    next_rstd = __ldg(rstds + r);
  };
  prefetch(row);
  typename Tile::Packed w = {}, b = {};
  auto load_weights = [&] {
    tile.template load<false>(static_cast<const Element*>(params.weight), w);
    if (params.bias != nullptr) tile.template load<false>(static_cast<const Element*>(params.bias), b);
  };
  if constexpr (Config::kWeights == Weights::kRegisters) load_weights();

  typename Tile::Floats dweight = {}, dbias = {};
  for (; row < rows; row += group.count()) {
    typename Tile::Floats h, dh;
    Tile::unpack(packed_x, h);
    Tile::unpack(packed_dy, dh);
    const float mean = next_mean, rstd = next_rstd;
    prefetch(row + group.count());
    if constexpr (Config::kWeights == Weights::kCached) load_weights();

    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if constexpr (Config::kWeights ==
                    Weights::kRegisters) {  // packed between rows, not unpacked outside of the loop
        cuda::ptx::opaque(w.vec[i].bits);
        cuda::ptx::opaque(b.vec[i].bits);
      }
      float fw[Tile::kVecSize], fb[Tile::kVecSize];
      cuda::unpack(w.vec[i], fw);
      cuda::unpack(b.vec[i], fb);
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        // Beyond the row's end dY is zero, and so is all that follows from it.
        h[i][j] = (h[i][j] - mean) * rstd;
        const float dz =
            dh[i][j] * cuda::gelu_derivative<Element, Config::kForm>(fmaf(h[i][j], fw[j], fb[j]));
        dweight[i][j] = fmaf(dz, h[i][j], dweight[i][j]);
        dbias[i][j] += dz;
        dh[i][j] = dz * fw[j];
        sums[0] += dh[i][j];
        sums[1] = fmaf(dh[i][j], h[i][j], sums[1]);
      }
    }
    group.sum(sums);
    const float shift = -sums[0] * inverse_cols, slope = -sums[1] * inverse_cols;
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) dh[i][j] = rstd * (fmaf(h[i][j], slope, dh[i][j]) + shift);
    }
    tile.store(static_cast<Element*>(params.dx) + row * params.cols, dh);
  }

  float* partial = static_cast<float*>(params.partial) + blockIdx.x * 2 * params.cols;
  store_sums<Config>(tile, dweight, partial);
  store_sums<Config>(tile, dbias, partial + params.cols);
}

/// Adds the blocks' sums: column by column, always in the same order.
/// Mapping: a block of 32 x 32 threads for 32 columns; warp w adds rows w, w + 32, ..., then the 32 warps'
/// sums are added. Bytes: partial_rows * 8 d, from L2.
template <class Element>
__global__ void __launch_bounds__(1024)
    add_partials_kernel(const float* __restrict__ partial, int64_t partial_rows, int64_t cols,
                        Element* dweight, Element* dbias) {
  __shared__ float sums[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t width = 2 * cols;
  const int64_t column = blockIdx.x * int64_t{32} + lane;
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = warp; row < partial_rows; row += 32) sum += partial[row * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < 32; ++w) total += sums[w][lane];
  if (column < cols) {
    dweight[column] = cuda::from_float<Element>(total);
  } else {
    dbias[column - cols] = cuda::from_float<Element>(total);
  }
}

}  // namespace plab::ops::layer_norm_gelu
