// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward: Y = gelu(LN(X) * W + B); keeps mean and rstd (fp32) for the backward.
// Mapping   one group of threads per row (a warp up to 128 vectors of 16 bytes, else a block), the row in
// registers, so X is
//           read once; the next row is on its way while this one is computed; persistent grid; W and B stay
//           in registers.
// Bytes     rows * (2 d e + 8) + 2 d e per block, e = bytes per element.      Flops about 30 per element.
// Roof      memory: H200 feeds 1.07e12 bf16 elements/s, which leaves 28 instruction slots for each; about 22
// are used. Contract  layer_norm_gelu.h; kExact and kVector: rows start at 16 bytes and d is a multiple of a
// vector.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/reduce.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads threads shall fit a multiprocessor together: it caps the registers of each at 65536 /
/// kResidentThreads.
template <class Tile_, class Group_, int kResidentThreads_, Weights kWeights_, GeluForm kForm_>
struct ForwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr Weights kWeights = kWeights_;
  static constexpr GeluForm kForm = kForm_;
  /// The mean is found to fp32 rounding. Where a row lies this many (squared) standard deviations from zero, that error shows
  /// in an Element, and the mean is corrected by what the centred row still sums to.
  static constexpr float kFarFromZero = std::is_same_v<Element, float> ? 1.0f : 1.0e4f;
};

/// 1 / sqrt(v), one Newton step beyond the approximation. v > 0.
__device__ __forceinline__ float accurate_rsqrt(float v) {
  const float r = rsqrtf(v);
  return fmaf(0.5f * r, fmaf(-v * r, r, 1.0f), r);
}

template <class Tile>
__device__ __forceinline__ float element_sum(const typename Tile::Floats& f) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) sum += f[i][j];
  }
  return sum;
}

/// Subtracts `shift` from this thread's elements, and returns the sum of their squares.
template <class Tile>
__device__ __forceinline__ float subtract(const Tile& tile, float shift, typename Tile::Floats& f) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      f[i][j] = tile.owns(i, j) ? f[i][j] - shift : 0.0f;
      squares = fmaf(f[i][j], f[i][j], squares);
    }
  }
  return squares;
}

/// The row's mean and the rstd of its distribution; on return f holds the row minus its mean. Two passes over registers:
/// nothing cancels, however far from zero the row lies.
template <class Config>
__device__ __forceinline__ void centre(const typename Config::Tile& tile, typename Config::Group& group, float inverse_cols,
                                       float eps, typename Config::Tile::Floats& f, float& mean, float& rstd) {
  using Tile = typename Config::Tile;
  float total[1] = {element_sum<Tile>(f)};
  group.sum(total);
  mean = total[0] * inverse_cols;
  float squares[1] = {subtract(tile, mean, f)};
  group.sum(squares);
  if (mean * mean > Config::kFarFromZero * inverse_cols * squares[0]) {  // all threads have the same numbers
    float rest[1] = {element_sum<Tile>(f)};
    group.sum(rest);
    const float shift = rest[0] * inverse_cols;
    mean += shift;
    squares[0] = subtract(tile, shift, f);
    group.sum(squares);
  }
  rstd = accurate_rsqrt(fmaf(squares[0], inverse_cols, eps));
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  __shared__ typename Config::Group::Storage storage;
  typename Config::Group group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const auto* x = static_cast<const Element*>(params.x);
  const auto* weight = static_cast<const Element*>(params.weight);
  const auto* bias = static_cast<const Element*>(params.bias);
  auto* y = static_cast<Element*>(params.y);
  const float inverse_cols = 1.0f / static_cast<float>(params.cols);
  const float eps = static_cast<float>(params.eps);

  const int64_t rows = params.rows;
  int64_t row = group.index();
  typename Tile::Packed packed;
  if (row < rows) tile.load(x + row * params.x_row_stride, packed);

  typename Tile::Packed w = {}, b = {};
  auto load_weights = [&] {
    tile.template load<false>(weight, w);
    if (bias != nullptr) tile.template load<false>(bias, b);
  };
  if constexpr (Config::kWeights == Weights::kRegisters) load_weights();

  for (; row < rows; row += group.count()) {
    typename Tile::Floats f;
    Tile::unpack(packed, f);
    const int64_t next = row + group.count();
    if (next < rows) tile.load(x + next * params.x_row_stride, packed);

    float mean, rstd;
    centre<Config>(tile, group, inverse_cols, eps, f, mean, rstd);
    if (group.rank() == 0) {
      static_cast<float*>(params.mean)[row] = mean;
      static_cast<float*>(params.rstd)[row] = rstd;
    }

    if constexpr (Config::kWeights == Weights::kCached) {
      load_weights();
    } else {
#pragma unroll
      for (int i = 0; i < Tile::kVecs;
           ++i) {  // unpacked outside of the loop they would take twice the registers
        cuda::ptx::opaque(w.vec[i].bits);
        cuda::ptx::opaque(b.vec[i].bits);
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      float fw[Tile::kVecSize], fb[Tile::kVecSize];
      cuda::unpack(w.vec[i], fw);
      cuda::unpack(b.vec[i], fb);
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        f[i][j] = cuda::gelu<Element, Config::kForm>(fmaf(f[i][j] * rstd, fw[j], fb[j]));
      }
    }
    tile.store(y + row * params.cols, f);
  }
}

}  // namespace plab::ops::layer_norm_gelu
