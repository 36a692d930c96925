// SPDX-License-Identifier: Apache-2.0
// A thread's share of the sums over a row of x - pivot and of its square, and their sum over the warp.
#pragma once

#include "cuda/pair_sum.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

template <class Tile>
class Moments {
 public:
  __device__ explicit Moments(float pivot) : pivot_(pivot) {}
  __device__ __forceinline__ void add(const Tile& tile, int i, cuda::Vec<typename Tile::Element> vec) {
    float f[Tile::kVecSize];
    cuda::unpack(vec, f);
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      if (!tile.owns(i, j)) continue;
      const float x = f[j] - pivot_;
      sum_ += x;
      squares_ = fmaf(x, x, squares_);
    }
  }
  /// As warp_pair_sum returns it.
  __device__ __forceinline__ float warp_sum() const { return cuda::warp_pair_sum(sum_, squares_); }

 private:
  float pivot_, sum_ = 0.0f, squares_ = 0.0f;
};

}  // namespace plab::ops::layer_norm_gelu
