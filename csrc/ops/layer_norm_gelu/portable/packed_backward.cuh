// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward for packed rows (packed.cuh).
//
// Mapping   a block takes a step of consecutive rows at a time, 16 columns a thread. The next steps of X and dY are
//           prefetched into shared memory, and weight and bias of a thread's columns lie there as fp32. A thread
//           keeps dW and dB of its columns in registers over all its steps. At the end the block adds them up over
//           the step's rows and writes them once, as in backward.cuh. All blocks are resident at once.
// Bytes     as in backward.cuh.
// Flops     about 40 per element.
// Roof      memory; README.md counts the instructions.
// Contract  as in packed_forward.cuh.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/packed.cuh"

namespace plab::ops::layer_norm_gelu {

template <class Element_, GeluForm kForm_, bool kResidual_>
struct PackedBackwardConfig {
  using Element = Element_;
  static constexpr GeluForm kForm = kForm_;
  static constexpr bool kResidual = kResidual_;
  static constexpr bool k16Bit = sizeof(Element) == 2;
  /// As in BackwardConfig.
  static constexpr bool kScaled = k16Bit && kForm == GeluForm::kErf;
  static constexpr float kOutScale = kScaled ? 0.5f / cuda::kGaussScale : 1.0f;
  using Tile = PackedTile<Element, 16>;
  static constexpr int kResidentThreads = kResidual ? 512 : 640;  // on an SM, which limits their registers
  template <bool kBulk>
  using Ring = PackedRing<Tile, 3, kResidual ? 3 : 2, kBulk>;
  using Sums = PackedSums<Tile>;
  static constexpr int kWeightQuads = 2 * Tile::kVecs * Tile::kVecSize / 4;  // of a thread
  static constexpr int kBytesPerThread =
      Ring<true>::kBytes + (kWeightQuads + 1) * static_cast<int>(sizeof(float4)) + 2 * static_cast<int>(sizeof(float2)) + Sums::kBytes;
};

/// What dX follows from, with dH and x. 16 bits: scale dH + slope x + shift, as in backward_kernel. fp32:
/// scale (dH + slope h + shift), in which the same h as in dH makes the terms cancel.
struct PackedGradientTerms {
  float scale, slope, shift, mean;
};

template <class Config>
__device__ __forceinline__ PackedGradientTerms gradient_terms(float mean, float rstd, float average,
                                                              float average_h) {
  const float scale = rstd * Config::kOutScale;
  if constexpr (!Config::k16Bit) return {scale, -average_h, -average, mean};
  const float slope = -average_h * scale * rstd;
  return {scale, slope, fmaf(-mean, slope, -average * scale), mean};
}

template <class Config, bool kBulk>
__device__ __forceinline__ void packed_backward(const BackwardParams& params, const Packing& packing) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kBulk>;
  using Element = typename Config::Element;
  using Floats = typename Tile::Floats;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize, kQuads = kVecSize / 4;
  static __shared__ typename Ring::Barriers barriers;
  float4* shared = cuda::ptx::dynamic_shared();
  const float inverse_cols = packing.inverse_cols;
  const Tile tile(packing);
  Ring ring(tile, packing, shared, barriers);
  float4* memory = shared + Ring::kBytes / sizeof(float4) * blockDim.x;
  // A thread's own, a warp apart: of each vector its weights, then its biases.
  float4* weights = memory + threadIdx.x / 32 * (Config::kWeightQuads * 32) + threadIdx.x % 32;
  memory += Config::kWeightQuads * blockDim.x;
  auto* terms = reinterpret_cast<PackedGradientTerms*>(memory);
  auto* statistics = reinterpret_cast<float2*>(memory + blockDim.x);  // mean and rstd of this step's rows
  auto* next_statistics = statistics + blockDim.x;
  typename Config::Sums sums(tile, packing, next_statistics + blockDim.x);

  const PackedSteps steps(packing, params.rows);
  typename Ring::Inputs inputs;
  inputs[0] = {steps, params.x, params.x_row_stride, params.cols};
  inputs[1] = {steps, params.dy, params.dy_row_stride, params.cols};
  if constexpr (Config::kResidual) inputs[2] = {steps, params.dsum, params.dsum_row_stride, params.cols};
  PackedOutput<Tile> dx(steps, params.dx, params.cols);
  const auto request = [&](int k) { ring.request(k < steps.count(), steps.at(k), inputs); };
  __syncthreads();
  for (int k = 0; k < Ring::kAhead; ++k) request(k);

  const float* mean_ahead = static_cast<const float*>(params.mean) + steps.first_row() + threadIdx.x;
  const int64_t to_rstd = static_cast<const float*>(params.rstd) - static_cast<const float*>(params.mean);
  /// Of this thread's row of the next step; zeros where there is none, so that nothing becomes NaN.
  const auto load_statistics = [&](const PackedStep& step) {
    float2 s{0.0f, 0.0f};
    if (threadIdx.x < static_cast<unsigned>(step.rows)) s = {__ldg(mean_ahead), __ldg(mean_ahead + to_rstd)};
    mean_ahead += steps.row_stride();
    return s;
  };
  statistics[threadIdx.x] = load_statistics(steps.at(0));
  {
    const float scale = Config::kScaled ? cuda::kGaussScale : 1.0f;
    for (int which = 0; which < 2; ++which) {
      Floats f;
      tile.load_columns(which == 0 ? params.weight : params.bias, f);
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
#pragma unroll
        for (int q = 0; q < kQuads; ++q)
          weights[((2 * i + which) * kQuads + q) * 32] =
              make_float4(f[i][4 * q] * scale, f[i][4 * q + 1] * scale, f[i][4 * q + 2] * scale,
                          f[i][4 * q + 3] * scale);
      }
    }
  }
  const auto weights_of = [&](int i, int which, float (&f)[kVecSize]) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 quad = weights[((2 * i + which) * kQuads + q) * 32];
      f[4 * q] = quad.x, f[4 * q + 1] = quad.y, f[4 * q + 2] = quad.z, f[4 * q + 3] = quad.w;
    }
  };
  __syncthreads();

  Floats dweight = {}, dbias = {};
  for (int k = 0; k < steps.count(); ++k, ring.advance()) {
    float2 ahead{0.0f, 0.0f};
    if (k + 1 < steps.count()) ahead = load_statistics(steps.at(k + 1));
    ring.wait();
    const PackedStep step = steps.at(k);
    Floats dh;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!step.has(tile, i)) continue;
      float f[kVecSize], dz[kVecSize], h[kVecSize], w[kVecSize], b[kVecSize];
      cuda::unpack(ring.vec(0, i), f);
      cuda::unpack(ring.vec(1, i), dz);
      weights_of(i, 0, w);
      weights_of(i, 1, b);
      tile.with_rows(i, statistics, [&](int j, const float2& row) {
        h[j] = Config::k16Bit ? fmaf(f[j], row.y, -row.x * row.y) : (f[j] - row.x) * row.y;
      });
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        const float z = fmaf(h[j], w[j], b[j]);
        if constexpr (Config::kScaled) {
          dz[j] = fmaf(dz[j], cuda::centred_slope_of_scaled<Element>(z), dz[j]);
        } else {
          dz[j] *= cuda::gelu_derivative<Element, Config::kForm>(z);
        }
        dweight[i][j] = fmaf(dz[j], h[j], dweight[i][j]);
        dbias[i][j] += dz[j];
        dh[i][j] = dz[j] * w[j];
      }
      sums.post(i, [&](int j) { return float2{dh[i][j], dh[i][j] * h[j]}; });
    }
    __syncthreads();
    request(k + Ring::kAhead);
    sums.each_row(step.rows, [&](int row, float sum, float sum_h) {
      terms[row] = gradient_terms<Config>(statistics[row].x, statistics[row].y, sum * inverse_cols,
                                          sum_h * inverse_cols);
    });
    next_statistics[threadIdx.x] = ahead;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!step.has(tile, i)) continue;
      float f[kVecSize], gradient[kVecSize];
      cuda::unpack(ring.vec(0, i), f);
      tile.with_rows(i, terms, [&](int j, const PackedGradientTerms& row) {
        if constexpr (Config::k16Bit) {
          gradient[j] = fmaf(dh[i][j], row.scale, fmaf(f[j], row.slope, row.shift));
        } else {
          const float h = (f[j] - row.mean) * row.scale;
          gradient[j] = row.scale * (fmaf(h, row.slope, dh[i][j]) + row.shift);
        }
      });
      if constexpr (Config::kResidual) {
        cuda::unpack(ring.vec(2, i), f);
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) gradient[j] += f[j];
      }
      dx.store(tile, step, i, cuda::pack<Element>(gradient), ring.at(0, i));
    }
    dx.advance();
    float2* swap = statistics;
    statistics = next_statistics, next_statistics = swap;
  }

  cuda::ptx::launch_dependents();  // add_partials_kernel may start now; it waits for this kernel's end
  // The threads' sums in the order of the step's elements, then over its rows.
  auto* elements = reinterpret_cast<float*>(shared);
  const auto finish = [&](const Floats& of_thread, void* whole, int64_t of_partial) {
    __syncthreads();  // nothing of what lies there is read any more
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!steps.whole().has(tile, i)) continue;
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) elements[tile.first(i) + j] = of_thread[i][j];
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < packing.cols; column += static_cast<int>(blockDim.x)) {
      float sum = 0.0f;
#pragma unroll 8
      for (int row = 0; row < packing.rows; ++row) sum += elements[row * packing.cols + column];
      if constexpr (Config::kScaled) sum *= 0.5f;
      if (params.partial == nullptr) {
        static_cast<Element*>(whole)[column] = cuda::from_float<Element>(sum);
      } else {
        static_cast<float*>(params.partial)[2 * blockIdx.x * params.cols + of_partial + column] = sum;
      }
    }
  };
  finish(dweight, params.dweight, 0);
  finish(dbias, params.dbias, params.cols);
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    packed_backward_kernel(const __grid_constant__ BackwardParams params,
                           const __grid_constant__ Packing packing) {
  packed_backward<Config, cuda::ptx::kHasBulkCopies>(params, packing);
}

}  // namespace plab::ops::layer_norm_gelu
