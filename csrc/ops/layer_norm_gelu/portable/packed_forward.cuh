// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward for packed rows (packed.cuh).
//
// Mapping   a block takes a step of consecutive rows at a time, 16 columns a thread. The next steps are prefetched
//           into shared memory. Weight and bias of a thread's columns stay in registers, as fp32.
// Bytes     as in forward.cuh.
// Flops     about 30 per element.
// Roof      memory; README.md counts the instructions.
// Contract  layer_norm_gelu.h; a step begins and ends at 16 bytes in every matrix, and a row has at least as many
//           columns as a vector. Rows that share a vector are contiguous.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/packed.cuh"
#include "ops/layer_norm_gelu/portable/statistics.cuh"

namespace plab::ops::layer_norm_gelu {

template <class Element_, GeluForm kForm_, bool kResidual_>
struct PackedForwardConfig {
  using Element = Element_;
  static constexpr GeluForm kForm = kForm_;
  static constexpr bool kResidual = kResidual_;
  static constexpr bool kTwoPasses = sizeof(Element) == 4;  // always; else where one pass is not enough
  using Tile = PackedTile<Element, kTwoPasses ? 16 : 32>;
  static constexpr int kResidentThreads = kTwoPasses ? 640 : 512;  // on an SM, which limits their registers
  template <bool kBulk>
  using Ring = PackedRing<Tile, 3, kResidual ? 2 : 1, kBulk>;
  using Sums = PackedSums<Tile>;
  static constexpr int kBytesPerThread = Ring<true>::kBytes + static_cast<int>(sizeof(float4)) + Sums::kBytes;
};

/// What normalises the elements of a row, as it lies in shared memory.
struct PackedTerms {
  float slope, offset, centre, slope_rest;  // as in RowStatistics
};

template <class Config, bool kCentred>
__device__ __forceinline__ float normalised(float x, const PackedTerms& row) {
  if constexpr (!kCentred) return fmaf(x, row.slope, row.offset);
  const float centred = x - row.centre;
  return fmaf(centred, row.slope, Config::kTwoPasses ? fmaf(centred, row.slope_rest, row.offset) : row.offset);
}

template <class Config, bool kBulk>
__device__ __forceinline__ void packed_forward(const ForwardParams& params, const Packing& packing) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kBulk>;
  using Element = typename Config::Element;
  using Floats = typename Tile::Floats;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize;
  static __shared__ typename Ring::Barriers barriers;
  float4* shared = cuda::ptx::dynamic_shared();
  const float eps = static_cast<float>(params.eps), inverse_cols = packing.inverse_cols;
  const Tile tile(packing);
  Ring ring(tile, packing, shared, barriers);
  auto* terms = reinterpret_cast<PackedTerms*>(shared) + Ring::kBytes / sizeof(float4) * blockDim.x;
  typename Config::Sums sums(tile, packing, terms + blockDim.x);

  const PackedSteps steps(packing, params.rows);
  typename Ring::Inputs inputs;
  inputs[0] = {steps, params.x, params.x_row_stride, params.cols};
  if constexpr (Config::kResidual)
    inputs[1] = {steps, params.residual, params.residual_row_stride, params.cols};
  PackedOutput<Tile> sum(steps, params.sum, params.cols), y(steps, params.y, params.cols);
  auto* mean_of = static_cast<float*>(params.mean) + steps.first_row();
  auto* rstd_of = static_cast<float*>(params.rstd) + steps.first_row();
  const auto request = [&](int k) { ring.request(k < steps.count(), steps.at(k), inputs); };
  __syncthreads();
  for (int k = 0; k < Ring::kAhead; ++k) request(k);
  Floats weight, bias;
  tile.load_columns(params.weight, weight);
  tile.load_columns(params.bias, bias);

  for (int k = 0; k < steps.count(); ++k, ring.advance()) {
    ring.wait();
    const PackedStep step = steps.at(k);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!step.has(tile, i)) continue;
      cuda::Vec<Element> vec = ring.vec(0, i);
      if constexpr (Config::kResidual) {
        vec = cuda::add(vec, ring.vec(1, i));
        ring.put(0, i, vec);
        sum.store(tile, step, i, vec, ring.at(1, i));
      }
      float f[kVecSize];
      cuda::unpack(vec, f);
      sums.post(i, [&](int j) {
        return Config::kTwoPasses ? float2{f[j] * inverse_cols, 0.0f} : float2{f[j], f[j] * f[j]};
      });
    }
    __syncthreads();
    request(k + Ring::kAhead);
    const auto keep = [&](int row, const RowStatistics& s) {
      terms[row] = {s.slope, s.offset, s.centre, s.slope_rest};
      mean_of[row] = s.mean, rstd_of[row] = s.rstd;
    };
    constexpr float kNotYet = 1.0f;  // of 16 bits, where slope_rest is zero
    bool far = false;
    sums.each_row(step.rows, [&](int row, float a, float b) {
      float mean = a;
      if constexpr (!Config::kTwoPasses) {
        mean *= inverse_cols;
        const float variance = fmaf(-mean, mean, b * inverse_cols);
        if (one_pass_is_enough(mean, variance)) return keep(row, one_pass_statistics(mean, variance, eps));
      }
      far = true;
      terms[row] = {0.0f, 0.0f, mean, kNotYet};
    });
    far = __syncthreads_or(far) != 0;
    if (far) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (!step.has(tile, i)) continue;
        float f[kVecSize], centred[kVecSize];
        cuda::unpack(ring.vec(0, i), f);
        tile.with_rows(i, terms, [&](int j, const PackedTerms& row) { centred[j] = f[j] - row.centre; });
        sums.post(i, [&](int j) { return float2{centred[j], centred[j] * centred[j]}; });
      }
      __syncthreads();
      sums.each_row(step.rows, [&](int row, float a, float b) {
        if (!Config::kTwoPasses && terms[row].slope_rest != kNotYet) return;
        keep(row, two_pass_statistics<Config::kTwoPasses>(terms[row].centre, a * inverse_cols, b * inverse_cols,
                                                          eps));
      });
      __syncthreads();
    }
    const auto finish = [&]<bool kCentred>() {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        if (!step.has(tile, i)) continue;
        float f[kVecSize], h[kVecSize];
        cuda::unpack(ring.vec(0, i), f);
        tile.with_rows(i, terms, [&](int j, const PackedTerms& row) {
          h[j] = normalised<Config, kCentred>(f[j], row);
        });
#pragma unroll
        for (int j = 0; j < kVecSize; ++j)
          f[j] = cuda::gelu<Element, Config::kForm>(fmaf(h[j], weight[i][j], bias[i][j]));
        y.store(tile, step, i, cuda::pack<Element>(f), ring.at(0, i));
      }
    };
    if (!Config::kTwoPasses && !far) {
      finish.template operator()<false>();
    } else {
      finish.template operator()<true>();
    }
    sum.advance(), y.advance();
    mean_of += steps.row_stride(), rstd_of += steps.row_stride();
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    packed_forward_kernel(const __grid_constant__ ForwardParams params,
                          const __grid_constant__ Packing packing) {
  packed_forward<Config, cuda::ptx::kHasBulkCopies>(params, packing);
}

}  // namespace plab::ops::layer_norm_gelu
