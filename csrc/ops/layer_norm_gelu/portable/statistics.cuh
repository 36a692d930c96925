// SPDX-License-Identifier: Apache-2.0
// Mean and rstd of a row. Each thread posts its part of the sums to the threads that share the row, and then
// collects the total. A second pass corrects the result where a single pass would cancel.
#pragma once

#include "cuda/math.cuh"
#include "cuda/pair_sum.cuh"
#include "ops/layer_norm_gelu/portable/load.cuh"

namespace plab::ops::layer_norm_gelu {

/// Of x / d, whose sum is the mean; no row of finite elements overflows.
template <class Tile>
class MeanShare {
 public:
  __device__ explicit MeanShare(float inverse_cols) : inverse_cols_(inverse_cols) {}
  __device__ __forceinline__ void add(const Tile& tile, int i, cuda::Vec<typename Tile::Element> vec) {
    tile.each(i, vec, [&](float x) { sum_ = fmaf(x, inverse_cols_, sum_); });
  }
  /// As warp_pair_sum returns it, together with a zero.
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

/// With these the normalised element is (x - centre) * slope + offset; slope is rstd but for slope_rest,
/// which fp32 adds. `centred` false: centre is 0.
struct RowStatistics {
  float mean, rstd, centre, slope, slope_rest, offset;
  bool centred;
};

/// One-pass mean and variance cancel if the mean is large compared with the spread. 16-bit rows for which this
/// matters are detected and get two passes; fp32 rows always get two. False for NaN too: either way passes it on.
__device__ __forceinline__ bool one_pass_is_enough(float mean, float variance) {
  constexpr float kLimit = 8.0f;  // (mean / std)^2
  return mean * mean <= kLimit * variance;
}

__device__ __forceinline__ RowStatistics one_pass_statistics(float mean, float variance, float eps) {
  const float rstd = cuda::accurate_rsqrt(variance + eps);
  return {mean, rstd, 0.0f, rstd, 0.0f, -mean * rstd, false};
}

/// From the averages of x - mean, which is the rounding error of the mean, and of its square. If the mean is far
/// from zero, the error matters, most of all in results near zero.
template <bool kExactSlope>
__device__ __forceinline__ RowStatistics two_pass_statistics(float mean, float rest, float squares,
                                                             float eps) {
  const float variance = fmaxf(fmaf(-rest, rest, squares), 0.0f) + eps;
  const float slope = rsqrtf(variance), slope_rest = cuda::rsqrt_rest(variance, slope);
  const float rstd = slope + slope_rest;
  if constexpr (kExactSlope) return {mean + rest, rstd, mean, slope, slope_rest, -rest * rstd, true};
  return {mean + rest, rstd, mean, rstd, 0.0f, -rest * rstd, true};
}

/// Posts this thread's part of the row's first sums. A residual is first added to the row, in the ring and in `sum`;
/// `given_residual` is the params'.
template <class Config, class Rows>
__device__ __forceinline__ typename Config::Group::Ticket post_first_sums(
    const typename Config::Tile& tile, typename Config::Group& group, Rows& ring, const Rows& residual,
    RingSlot slot, float inverse_cols, const void* given_residual, typename Config::Element* sum,
    bool has_row = true) {
  typename Config::FirstPass sums(Config::kTwoPasses ? inverse_cols : 0.0f);
#pragma unroll
  for (int i = 0; i < Config::Tile::kVecs; ++i) {
    if (tile.skips(i)) continue;
    cuda::Vec<typename Config::Element> vec = ring.vec(slot, i);
    with_residual<Config::kResidual>(given_residual, [&] {
      vec = cuda::add(vec, residual.vec(slot, i));
      ring.put(slot, i, vec);
      if (has_row) tile.store_packed(sum, i, vec);
    });
    sums.add(tile, i, vec);
  }
  return group.post(sums.warp_sum());
}

/// All threads of the group have the same sums and take the same branch.
template <class Config, class Rows>
__device__ __forceinline__ RowStatistics statistics(const typename Config::Tile& tile,
                                                    typename Config::Group& group,
                                                    const typename Config::Group::Ticket& ticket,
                                                    const Rows& ring, RingSlot slot, float inverse_cols,
                                                    float eps) {
  using Tile = typename Config::Tile;
  float mean, squares;
  group.collect(ticket, mean, squares);
  if constexpr (!Config::kTwoPasses) {
    mean *= inverse_cols;
    const float variance = fmaf(-mean, mean, squares * inverse_cols);
    bool near = one_pass_is_enough(mean, variance);
    if constexpr (Config::Group::kLanes < cuda::kWarpSize) near = __all_sync(cuda::kAllLanes, near);
    if (near) return one_pass_statistics(mean, variance, eps);
  }
  Moments<Tile> centred(mean);
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    if (!tile.skips(i)) centred.add(tile, i, ring.vec(slot, i));
  }
  float rest, rest_squares;
  group.collect(group.post(centred.warp_sum()), rest, rest_squares);
  return two_pass_statistics<Config::kTwoPasses>(mean, rest * inverse_cols, rest_squares * inverse_cols, eps);
}

}  // namespace plab::ops::layer_norm_gelu
