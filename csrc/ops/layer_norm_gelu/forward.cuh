// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward: Y = gelu(LN(X) * W + B); keeps mean and rstd (fp32) for the backward.
// Mapping   one group of threads per row (a warp up to 128 vectors of 16 bytes, else a block), the row in
// registers, so X is
//           read once; a group has a run of rows and the next one is on its way while one is computed. There
//           are several times more blocks than fit at once: multiprocessors do not all reach memory equally
//           fast, and whoever is ahead takes the next block.
// Bytes     rows * (2 d e + 8), e = bytes per element, and W and B once per block (L2).      Flops about 30
// per element. Roof      memory: H200 feeds 1.07e12 bf16 elements/s, which leaves 28 instruction slots for
// each; README.md counts ours. Contract  layer_norm_gelu.h; kExact and kVector: rows start at 16 bytes and d
// is a multiple of a vector.
#pragma once

#include "cuda/math.cuh"
#include "cuda/reduce.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/row_tile.cuh"
#include "ops/layer_norm_gelu/weights.cuh"

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
  /// Mean and variance in one pass, from the sums of x and x^2, which cancel where |mean| is large beside the
  /// spread; such rows are found and get the two passes that fp32 elements always get.
  static constexpr bool kOnePass = !std::is_same_v<Element, float>;
  static constexpr float kOnePassLimit = 8.0f;  // (mean / std)^2: three bits of the variance
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

/// Sum of the squares.
template <class Tile>
__device__ __forceinline__ float square_sum(const typename Tile::Floats& f) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) sum = fmaf(f[i][j], f[i][j], sum);
  }
  return sum;
}

/// Moves this thread's elements by `shift`; those beyond the row's end stay zero.
template <class Tile>
__device__ __forceinline__ void subtract(const Tile& tile, float shift, typename Tile::Floats& f) {
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) f[i][j] = tile.owns(i, j) ? f[i][j] - shift : 0.0f;
  }
}

/// The row's mean and rstd, and the `offset` with which f * rstd + offset is the normalised row; f may have
/// been moved. All threads of the group have the same sums and take the same branch.
template <class Config>
__device__ __forceinline__ void normalise(const typename Config::Tile& tile, typename Config::Group& group,
                                          float inverse_cols, float eps, typename Config::Tile::Floats& f,
                                          float& mean, float& rstd, float& offset) {
  using Tile = typename Config::Tile;
  if constexpr (Config::kOnePass) {
    float sums[2] = {element_sum<Tile>(f), square_sum<Tile>(f)};
    group.sum(sums);
    mean = sums[0] * inverse_cols;
    const float variance = fmaf(-mean, mean, sums[1] * inverse_cols);
    if (mean * mean <= Config::kOnePassLimit * variance) {  // false for NaN too, which either path passes on
      rstd = accurate_rsqrt(variance + eps);
      offset = -mean * rstd;
      return;
    }
  } else {
    float total[1] = {element_sum<Tile>(f)};
    group.sum(total);
    mean = total[0] * inverse_cols;
  }
  subtract(tile, mean, f);
  // What the centred row still sums to is the rounding error of its mean; far from zero that error shows.
  float rest[2] = {element_sum<Tile>(f), square_sum<Tile>(f)};
  group.sum(rest);
  const float shift = rest[0] * inverse_cols;
  rstd = accurate_rsqrt(fmaxf(fmaf(-shift, shift, rest[1] * inverse_cols), 0.0f) + eps);
  mean += shift;
  offset = -shift * rstd;
}

/// Group g computes rows [g * rows_per_group, (g + 1) * rows_per_group).
template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    forward_kernel(const __grid_constant__ ForwardParams params, int64_t rows_per_group) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  static __shared__ typename Config::Group::Storage storage;
  extern __shared__ float4 shared[];
  typename Config::Group group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const auto* x = static_cast<const Element*>(params.x);
  auto* y = static_cast<Element*>(params.y);
  const float inverse_cols = 1.0f / static_cast<float>(params.cols);
  const float eps = static_cast<float>(params.eps);

  int64_t row = group.index() * rows_per_group;
  const int64_t end = row + rows_per_group < params.rows ? row + rows_per_group : params.rows;
  typename Tile::Packed packed;
  if (row < end) tile.load(x + row * params.x_row_stride, packed);
  WeightStore<Tile, Config::kWeights> weights(tile, static_cast<const Element*>(params.weight),
                                              static_cast<const Element*>(params.bias), group, shared);
  __syncthreads();  // the weights in shared memory

  for (; row < end; ++row) {
    typename Tile::Floats f;
    Tile::unpack(packed, f);
    if (row + 1 < end) tile.load(x + (row + 1) * params.x_row_stride, packed);

    float mean, rstd, offset;
    normalise<Config>(tile, group, inverse_cols, eps, f, mean, rstd, offset);
    if (group.rank() == 0) {
      static_cast<float*>(params.mean)[row] = mean;
      static_cast<float*>(params.rstd)[row] = rstd;
    }
    weights.next_row();
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      float weight[Tile::kVecSize], bias[Tile::kVecSize];
      weights.get(i, weight, bias);
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        const float h = fmaf(f[i][j], rstd, offset);
        f[i][j] = cuda::gelu<Element, Config::kForm>(fmaf(h, weight[j], bias[j]));
      }
    }
    tile.store(y + row * params.cols, f);
  }
}

}  // namespace plab::ops::layer_norm_gelu
