// SPDX-License-Identifier: Apache-2.0
// A thread's share of the sums over a row of x - pivot and of its square, and their sum over the warp.
#pragma once

#include "cuda/pair_sum.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// In fp32, element by element.
template <class Tile>
class FloatMoments {
 public:
  __device__ explicit FloatMoments(float pivot) : pivot_(pivot) {}
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

/// On the tensor cores, which multiply 16-bit elements exactly and add in fp32: 5 instructions for the 256
/// elements that a warp has in one vector of each lane, instead of 24. The pivot is 0.
///
/// A lane's vector is one fragment A of mma.m16n8k16, and its words, two at a time, are fragments A of
/// mma.m16n8k8: lane 4 g + t has the first in row g, the second in row g + 8. One word is also a fragment B,
/// of column g. So A times ones sums the rows, and A times one of its own words has that word's sums of
/// squares on a diagonal: the first word's in the upper half, the second word's in the lower.
template <class Tile>
class TensorMoments {
 public:
  using Element = typename Tile::Element;
  __device__ explicit TensorMoments(float) {}
  __device__ __forceinline__ void add(const Tile&, int, cuda::Vec<Element> vec) {
    constexpr uint32_t kOnes = std::is_same_v<Element, __half> ? 0x3c003c00u : 0x3f803f80u;
    const uint4 v = vec.bits;
    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
    cuda::ptx::mma_m16n8k16<Element>(sums_[0], sums_[1], sums_[2], sums_[3], a, kOnes, kOnes);
    cuda::ptx::mma_m16n8k8<Element>(upper_, v.x, v.y, v.x);
    cuda::ptx::mma_m16n8k8<Element>(lower_, v.x, v.y, v.y);
    cuda::ptx::mma_m16n8k8<Element>(upper_, v.z, v.w, v.z);
    cuda::ptx::mma_m16n8k8<Element>(lower_, v.z, v.w, v.w);
  }
  /// As warp_pair_sum returns it.
  __device__ __forceinline__ float warp_sum() const {
    const int lane = threadIdx.x % 32, g = lane / 4;
    // The diagonals' elements of row g, and of row g + 8, are with lane 4 g + g / 2.
    const float squares = g % 2 == 0 ? upper_[0] + lower_[2] : upper_[1] + lower_[3];
    const float of_row = __shfl_sync(cuda::kAllLanes, squares, g * 4 + g / 2);
    float v = lane % 2 == 0 ? sums_[0] + sums_[2] : of_row;
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) v += __shfl_xor_sync(cuda::kAllLanes, v, offset);
    return v;
  }

 private:
  float sums_[4] = {}, upper_[4] = {}, lower_[4] = {};
};

template <class Tile>
using Moments = std::conditional_t<std::is_same_v<typename Tile::Element, float>, FloatMoments<Tile>,
                                   TensorMoments<Tile>>;

}  // namespace plab::ops::layer_norm_gelu
