// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu for rows that no other kernel supports: longer than registers hold, or long and not aligned.
// Correct first, fast second.
//
// Mapping   one block of 512 threads per row, one element per thread and step; a persistent kernel.
// Bytes     forward: X read three times (mean, variance, result), backward: X and dY twice; L2 serves all reads
//           but the first if a row per SM fits into it.
// Flops     as in forward.cuh and backward.cuh, the backward's gradient twice.
// Roof      L2 bandwidth, and the latency of a pass that is bound by its barrier for few rows.
// Contract  layer_norm_gelu.h; no alignment, any number of columns.
#pragma once

#include "cuda/math.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

constexpr int kLongThreads = 512;
constexpr int kLongBlocksPerSm = 2;

/// Sum of f(column) over the row, in every thread.
template <class Function>
__device__ __forceinline__ float row_sum(cuda::BlockGroup& group, int64_t cols, Function&& f) {
  float sum[1] = {0.0f};
#pragma unroll 4
  for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) sum[0] += f(c);
  group.sum(sum);
  return sum[0];
}

template <class Element, GeluForm kForm>
__global__ void __launch_bounds__(kLongThreads)
    forward_long_kernel(const __grid_constant__ ForwardParams params) {
  static __shared__ cuda::BlockGroup::Storage storage;
  cuda::BlockGroup group(storage);
  const auto* weight = static_cast<const Element*>(params.weight);
  const auto* bias = static_cast<const Element*>(params.bias);
  const int64_t cols = params.cols;
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const Element* x = static_cast<const Element*>(params.x) + row * params.x_row_stride;
    Element* y = static_cast<Element*>(params.y) + row * cols;
    if (params.residual != nullptr) {  // each thread reads again only what it wrote
      const Element* residual =
          static_cast<const Element*>(params.residual) + row * params.residual_row_stride;
      Element* sum = static_cast<Element*>(params.sum) + row * cols;
      for (int64_t c = threadIdx.x; c < cols; c += kLongThreads)
        sum[c] = cuda::from_float<Element>(cuda::to_float(x[c]) + cuda::to_float(residual[c]));
      x = sum;
    }
    const float mean = row_sum(group, cols, [&](int64_t c) { return cuda::to_float(x[c]); }) * inverse_cols;
    // The sum of the centred row is the rounding error of its mean. If the mean is far from zero, it matters.
    const float rest =
        row_sum(group, cols, [&](int64_t c) { return cuda::to_float(x[c]) - mean; }) * inverse_cols;
    const auto centred = [&](int64_t c) { return (cuda::to_float(x[c]) - mean) - rest; };
    const float variance =
        row_sum(group, cols, [&](int64_t c) { return centred(c) * centred(c); }) * inverse_cols;
    const float rstd = cuda::accurate_rsqrt(variance + static_cast<float>(params.eps));
    if (threadIdx.x == 0) {
      static_cast<float*>(params.mean)[row] = mean + rest;
      static_cast<float*>(params.rstd)[row] = rstd;
    }
#pragma unroll 4
    for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) {
      const float b = bias != nullptr ? cuda::to_float(bias[c]) : 0.0f;
      const float z = fmaf(centred(c) * rstd, cuda::to_float(weight[c]), b);
      y[c] = cuda::from_float<Element>(cuda::gelu<Element, kForm>(z));
    }
  }
}

template <class Element, GeluForm kForm>
__global__ void __launch_bounds__(kLongThreads)
    backward_long_kernel(const __grid_constant__ BackwardParams params) {
  static __shared__ cuda::BlockGroup::Storage storage;
  cuda::BlockGroup group(storage);
  const auto* weight = static_cast<const Element*>(params.weight);
  const auto* bias = static_cast<const Element*>(params.bias);
  const int64_t cols = params.cols;
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  float* dweight =
      static_cast<float*>(params.partial) + blockIdx.x * 2 * cols;  // this block's own, so no atomics
  float* dbias = dweight + cols;
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const Element* x = static_cast<const Element*>(params.x) + row * params.x_row_stride;
    const Element* dy = static_cast<const Element*>(params.dy) + row * params.dy_row_stride;
    Element* dx = static_cast<Element*>(params.dx) + row * cols;
    const Element* dsum = params.dsum == nullptr
                              ? nullptr
                              : static_cast<const Element*>(params.dsum) + row * params.dsum_row_stride;
    const float mean = static_cast<const float*>(params.mean)[row];
    const float rstd = static_cast<const float*>(params.rstd)[row];
    const bool first = row == blockIdx.x;
    auto gradient = [&](int64_t c, float& h, float& dz) {
      const float b = bias != nullptr ? cuda::to_float(bias[c]) : 0.0f;
      h = (cuda::to_float(x[c]) - mean) * rstd;
      dz = cuda::to_float(dy[c]) *
           cuda::gelu_derivative<Element, kForm>(fmaf(h, cuda::to_float(weight[c]), b));
    };
    float sums[2] = {0.0f, 0.0f};
    for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) {
      float h, dz;
      gradient(c, h, dz);
      dweight[c] = fmaf(dz, h, first ? 0.0f : dweight[c]);
      dbias[c] = dz + (first ? 0.0f : dbias[c]);
      const float dh = dz * cuda::to_float(weight[c]);
      sums[0] += dh;
      sums[1] = fmaf(dh, h, sums[1]);
    }
    group.sum(sums);
    const float mean_dh = sums[0] * inverse_cols, mean_dh_h = sums[1] * inverse_cols;
    for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) {
      float h, dz;
      gradient(c, h, dz);
      const float elsewhere = dsum != nullptr ? cuda::to_float(dsum[c]) : 0.0f;
      dx[c] = cuda::from_float<Element>(
          fmaf(rstd, fmaf(-h, mean_dh_h, dz * cuda::to_float(weight[c])) - mean_dh, elsewhere));
    }
  }
}

}  // namespace plab::ops::layer_norm_gelu
