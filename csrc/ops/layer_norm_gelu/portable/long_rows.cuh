// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu for rows that no other kernel supports: longer than registers hold, or long and not aligned.
// Correct first, fast second.
//
// Mapping   one block of 512 threads per row, one element per thread and step; a persistent kernel. The backward has a
//           second one for dW and dB.
// Bytes     forward: X read three times (mean, variance, result), backward: X and dY three times; L2 serves a block's
//           second and third pass over a row if two rows per SM fit into it.
// Flops     as in forward.cuh and backward.cuh, the backward's gradient three times.
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

/// Of one element: H and dZ.
template <class Element, GeluForm kForm>
__device__ __forceinline__ void column_gradient(float x, float dy, float mean, float rstd, float weight,
                                                float bias, float& h, float& dz) {
  h = (x - mean) * rstd;
  dz = dy * cuda::gelu_derivative<Element, kForm>(fmaf(h, weight, bias));
}

/// dX.
template <class Element, GeluForm kForm>
__global__ void __launch_bounds__(kLongThreads, kLongBlocksPerSm)
    backward_long_kernel(const __grid_constant__ BackwardParams params) {
  static __shared__ cuda::BlockGroup::Storage storage;
  cuda::BlockGroup group(storage);
  const auto* weight = static_cast<const Element*>(params.weight);
  const auto* bias = static_cast<const Element*>(params.bias);
  const int64_t cols = params.cols;
  const float inverse_cols = 1.0f / static_cast<float>(cols);
  for (int64_t row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const Element* x = static_cast<const Element*>(params.x) + row * params.x_row_stride;
    const Element* dy = static_cast<const Element*>(params.dy) + row * params.dy_row_stride;
    Element* dx = static_cast<Element*>(params.dx) + row * cols;
    const Element* dsum = params.dsum == nullptr
                              ? nullptr
                              : static_cast<const Element*>(params.dsum) + row * params.dsum_row_stride;
    const float mean = __ldg(static_cast<const float*>(params.mean) + row);
    const float rstd = __ldg(static_cast<const float*>(params.rstd) + row);
    const auto gradient = [&](int64_t c, float& h) {
      const float w = cuda::to_float(__ldg(weight + c));
      const float b = bias != nullptr ? cuda::to_float(__ldg(bias + c)) : 0.0f;
      float dz;
      column_gradient<Element, kForm>(cuda::to_float(__ldg(x + c)), cuda::to_float(__ldg(dy + c)), mean, rstd,
                                      w, b, h, dz);
      return dz * w;
    };
    float sums[2] = {0.0f, 0.0f};
#pragma unroll 4
    for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) {
      float h;
      const float dh = gradient(c, h);
      sums[0] += dh;
      sums[1] = fmaf(dh, h, sums[1]);
    }
    group.sum(sums);
    const float mean_dh = sums[0] * inverse_cols, mean_dh_h = sums[1] * inverse_cols;
#pragma unroll 4
    for (int64_t c = threadIdx.x; c < cols; c += kLongThreads) {
      float h;
      const float dh = gradient(c, h);
      const float elsewhere = dsum != nullptr ? cuda::to_float(__ldg(dsum + c)) : 0.0f;
      dx[c] = cuda::from_float<Element>(fmaf(rstd, fmaf(-h, mean_dh_h, dh) - mean_dh, elsewhere));
    }
  }
}

constexpr int kLongSumsThreads = 256, kLongSumsRows = 8;  // rows that are read at a time

/// The sums for dW and dB. A thread has one column of the rows that share a row of the workspace. The sums of a row that
/// long fit no block; so its x and dY are read a second time, which costs less than sums that travel with each row.
template <class Element, GeluForm kForm>
__global__ void __launch_bounds__(kLongSumsThreads)
    backward_long_sums_kernel(const __grid_constant__ BackwardParams params) {
  const auto columns =
      static_cast<unsigned>((params.cols + kLongSumsThreads - 1) / kLongSumsThreads);  // blocks
  const int64_t run = blockIdx.x / columns,
                c = int64_t{blockIdx.x % columns} * kLongSumsThreads + threadIdx.x;
  if (c >= params.cols) return;
  const int64_t rows = (params.rows + params.partial_rows - 1) / params.partial_rows;  // of a run
  const int64_t first = run * rows, end = first + rows < params.rows ? first + rows : params.rows;
  const auto* x = static_cast<const Element*>(params.x) + c;
  const auto* dy = static_cast<const Element*>(params.dy) + c;
  const auto* means = static_cast<const float*>(params.mean);
  const auto* rstds = static_cast<const float*>(params.rstd);
  const float weight = cuda::to_float(static_cast<const Element*>(params.weight)[c]);
  const float bias =
      params.bias != nullptr ? cuda::to_float(static_cast<const Element*>(params.bias)[c]) : 0.0f;
  float dweight = 0.0f, dbias = 0.0f;
  for (int64_t row = first; row < end; row += kLongSumsRows) {
    Element xs[kLongSumsRows], dys[kLongSumsRows];
    float mean[kLongSumsRows], rstd[kLongSumsRows];
#pragma unroll
    for (int k = 0; k < kLongSumsRows; ++k) {
      const int64_t at = row + k < end ? row + k : row;  // beyond the run: read, and not added
      xs[k] = __ldg(x + at * params.x_row_stride), dys[k] = __ldg(dy + at * params.dy_row_stride);
      mean[k] = __ldg(means + at), rstd[k] = __ldg(rstds + at);
    }
#pragma unroll
    for (int k = 0; k < kLongSumsRows; ++k) {
      float h, dz;
      column_gradient<Element, kForm>(cuda::to_float(xs[k]), cuda::to_float(dys[k]), mean[k], rstd[k], weight,
                                      bias, h, dz);
      if (row + k < end) dweight = fmaf(dz, h, dweight), dbias += dz;
    }
  }
  float* sums = static_cast<float*>(params.partial) + 2 * run * params.cols + c;
  sums[0] = dweight, sums[params.cols] = dbias;
}

}  // namespace plab::ops::layer_norm_gelu
