// SPDX-License-Identifier: Apache-2.0
// A thread's share of the sums over a row, and their sum over the warp.
#pragma once

#include "cuda/pair_sum.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// Of x / d, whose sum is the mean; no row of finite elements overflows.
template <class Tile>
class MeanShare {
 public:
  __device__ explicit MeanShare(float inverse_cols) : inverse_cols_(inverse_cols) {}
  __device__ __forceinline__ void add(const Tile& tile, int i, cuda::Vec<typename Tile::Element> vec) {
    tile.each(i, vec, [&](float x) { sum_ = fmaf(x, inverse_cols_, sum_); });
  }
  /// As warp_pair_sum returns it, beside a zero.
  __device__ __forceinline__ float warp_sum() const { return cuda::warp_pair_sum<Tile::kLanes>(sum_, 0.0f); }

 private:
  float inverse_cols_, sum_ = 0.0f;
};

/// Of x - centre and of its square.
template <class Tile>
class Moments {
 public:
  __device__ explicit Moments(float centre) : centre_(centre) {}
  __device__ __forceinline__ void add(const Tile& tile, int i, cuda::Vec<typename Tile::Element> vec) {
    tile.each(i, vec, [&](float element) {
      const float x = element - centre_;
      sum_ += x;
      squares_ = fmaf(x, x, squares_);
    });
  }
  /// As warp_pair_sum returns it.
  __device__ __forceinline__ float warp_sum() const {
    return cuda::warp_pair_sum<Tile::kLanes>(sum_, squares_);
  }

 private:
  float centre_, sum_ = 0.0f, squares_ = 0.0f;
};

}  // namespace plab::ops::layer_norm_gelu
