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
/// kResidentThreads. kPrefetch: the next row of a group is requested before this one is computed; without it,
/// other blocks fill the wait.
template <class Tile_, class Group_, int kResidentThreads_, Weights kWeights_, bool kPrefetch_,
          GeluForm kForm_>
struct ForwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  static constexpr int kMaxBlock = kResidentThreads_ > 1024 ? 512 : kResidentThreads_;
  static constexpr int kMinBlocks = kResidentThreads_ / kMaxBlock;
  static constexpr Weights kWeights = kWeights_;
  static constexpr bool kPrefetch = kPrefetch_;
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

/// Calls use(i, j, value) for this thread's elements of a row. They stay packed in between: two elements a
/// register.
template <class Tile, class Use>
__device__ __forceinline__ void for_elements(const Tile& tile, const typename Tile::Packed& row, Use&& use) {
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    float f[Tile::kVecSize];
    cuda::unpack(row.vec[i], f);
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      if (tile.owns(i, j)) use(i, j, f[j]);
    }
  }
}

/// With these the normalised element is (x - centre) * rstd + offset. `centred` false: centre is 0.
struct RowStatistics {
  float mean, rstd, centre, offset;
  bool centred;
};

/// All threads of the group have the same sums and take the same branch.
template <class Config>
__device__ __forceinline__ RowStatistics statistics(const typename Config::Tile& tile,
                                                    typename Config::Group& group,
                                                    const typename Config::Tile::Packed& row,
                                                    float inverse_cols, float eps) {
  float sums[2] = {0.0f, 0.0f};
  for_elements(tile, row, [&](int, int, float x) {
    sums[0] += x;
    if constexpr (Config::kOnePass) sums[1] = fmaf(x, x, sums[1]);
  });
  group.sum(sums);
  const float mean = sums[0] * inverse_cols;
  if constexpr (Config::kOnePass) {
    const float variance = fmaf(-mean, mean, sums[1] * inverse_cols);
    if (mean * mean <= Config::kOnePassLimit * variance) {  // false for NaN too, which either path passes on
      const float rstd = accurate_rsqrt(variance + eps);
      return {mean, rstd, 0.0f, -mean * rstd, false};
    }
  }
  // What the centred row still sums to is the rounding error of its mean; far from zero that error shows.
  float rest[2] = {0.0f, 0.0f};
  for_elements(tile, row, [&](int, int, float x) {
    rest[0] += x - mean;
    rest[1] = fmaf(x - mean, x - mean, rest[1]);
  });
  group.sum(rest);
  const float shift = rest[0] * inverse_cols;
  const float rstd = accurate_rsqrt(fmaxf(fmaf(-shift, shift, rest[1] * inverse_cols), 0.0f) + eps);
  return {mean + shift, rstd, mean, -shift * rstd, true};
}

/// y of this thread's elements, vector by vector.
template <class Config, bool kCentred>
__device__ __forceinline__ void finish_row(
    const typename Config::Tile& tile, const typename Config::Tile::Packed& row, const RowStatistics& s,
    const WeightStore<typename Config::Tile, Config::kWeights>& weights, typename Config::Element* y) {
  using Tile = typename Config::Tile;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    float f[Tile::kVecSize], weight[Tile::kVecSize], bias[Tile::kVecSize];
    cuda::unpack(row.vec[i], f);
    weights.get(i, weight, bias);
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      const float h = fmaf(kCentred ? f[j] - s.centre : f[j], s.rstd, s.offset);
      f[j] = cuda::gelu<typename Config::Element, Config::kForm>(fmaf(h, weight[j], bias[j]));
    }
    tile.store_vec(y, i, f);
  }
}

/// Group g computes rows [g * rows_per_group, (g + 1) * rows_per_group).
template <class Config>
__global__ void __launch_bounds__(Config::kMaxBlock, Config::kMinBlocks)
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
  typename Tile::Packed next;
  if (Config::kPrefetch && row < end) tile.load(x + row * params.x_row_stride, next);
  WeightStore<Tile, Config::kWeights> weights(tile, static_cast<const Element*>(params.weight),
                                              static_cast<const Element*>(params.bias), group, shared);
  if constexpr (Config::kWeights == Weights::kShared) __syncthreads();

  for (; row < end; ++row) {
    typename Tile::Packed now;
    if constexpr (Config::kPrefetch) {
      now = next;
      if (row + 1 < end) tile.load(x + (row + 1) * params.x_row_stride, next);
    } else {
      tile.load(x + row * params.x_row_stride, now);
    }
    weights.next_row();
    const RowStatistics s = statistics<Config>(tile, group, now, inverse_cols, eps);
    if (group.rank() == 0) {
      static_cast<float*>(params.mean)[row] = s.mean;
      static_cast<float*>(params.rstd)[row] = s.rstd;
    }
    Element* out = y + row * params.cols;
    if (Config::kOnePass && !s.centred) {
      finish_row<Config, false>(tile, now, s, weights, out);
    } else {
      finish_row<Config, true>(tile, now, s, weights, out);
    }
  }
}

}  // namespace plab::ops::layer_norm_gelu
