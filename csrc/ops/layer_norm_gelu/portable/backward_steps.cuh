// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward, step by step (step.cuh).
//
// Mapping   as in forward_steps.cuh, 16 columns a thread. Weight and bias of a thread's columns lie in shared memory as
//           fp32. A thread keeps dW and dB of its columns in registers over all its steps. At the end the block adds
//           them up over the step's rows and writes them once, as in backward.cuh. All blocks are resident at once.
// Bytes     as in backward.cuh.
// Flops     about 40 per element.
// Roof      memory; README.md counts the instructions.
// Contract  as in forward_steps.cuh.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "ops/layer_norm_gelu/portable/step.cuh"
#include "ops/layer_norm_gelu/portable/step_sums.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads: as in ForwardStepsConfig.
template <class Element_, GeluForm kForm_, bool kResidual_, int kColumns = 16, int kResidentThreads_ = 512,
          int kStages_ = 3>
struct BackwardStepsConfig {
  using Element = Element_;
  using Tile = StepTile<Element, kColumns>;
  static constexpr GeluForm kForm = kForm_;
  static constexpr bool kResidual = kResidual_;
  static constexpr bool k16Bit = sizeof(Element) == 2;
  /// As in BackwardConfig.
  static constexpr bool kScaled = k16Bit && kForm == GeluForm::kErf;
  static constexpr float kOutScale = kScaled ? 0.5f / cuda::kGaussScale : 1.0f;
  static constexpr int kResidentThreads = kResidentThreads_, kStages = kStages_;
  template <bool kHopper>
  using Ring = StepRing<Tile, kStages, kResidual ? 3 : 2, kHopper>;
  using Part = float2;  // of some elements of a row: the sums of dH and of dH H
  template <bool kHopper>
  using Sums = StepSums<Tile, Part, 1, kHopper>;

  using Statistics = float2;  // mean and rstd of a row
  /// What dX follows from, with dH and x. 16 bits: scale dH + slope x + shift, as in backward_kernel. fp32:
  /// scale (dH + slope h + shift), in which the same h as in dH makes the terms cancel.
  struct Terms {
    float scale, slope, shift, mean;
  };
  static constexpr int kWeightQuads = 2 * kColumns / 4;  // of a thread
  static constexpr int kBytesPerThread = Ring<true>::kBytes + kWeightQuads * static_cast<int>(sizeof(float4)) +
                                         2 * static_cast<int>(sizeof(Terms)) +
                                         3 * static_cast<int>(sizeof(Statistics)) + Sums<true>::kBytes;
};

template <class Config>
__device__ __forceinline__ typename Config::Terms gradient_terms(const typename Config::Statistics& row,
                                                                 float average, float average_h) {
  const float mean = row.x, rstd = row.y, scale = rstd * Config::kOutScale;
  if constexpr (!Config::k16Bit) return {scale, -average_h, -average, mean};
  const float slope = -average_h * scale * rstd;
  return {scale, slope, fmaf(-mean, slope, -average * scale), mean};
}

template <class Config, bool kHopper>
__device__ __forceinline__ void backward_steps(const BackwardParams& params, const StepLayout& layout) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kHopper>;
  using Sums = typename Config::template Sums<kHopper>;
  using Part = typename Config::Part;
  using Statistics = typename Config::Statistics;
  using Terms = typename Config::Terms;
  using Element = typename Config::Element;
  using Floats = typename Tile::Floats;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize, kQuads = kVecSize / 4;
  static __shared__ typename Ring::Barriers barriers;
  static __shared__ typename Sums::OfCluster::Storage of_cluster;
  char* const shared = reinterpret_cast<char*>(cuda::ptx::dynamic_shared());
  const float inverse_cols = layout.inverse_cols;

  const TeamSteps steps(layout, params.rows, Team<kHopper>::index(), Team<kHopper>::count());
  const Tile tile(layout, static_cast<const Element*>(params.x) + steps.first_row(0) * params.x_row_stride,
                  Team<kHopper>::rank());
  Ring ring(tile, layout, shared, barriers);
  char* memory = shared + Ring::kBytes * blockDim.x;
  // A thread's own, a warp apart: of each vector its weights, then its biases.
  float4* weights =
      reinterpret_cast<float4*>(memory) + threadIdx.x / 32 * (Config::kWeightQuads * 32) + threadIdx.x % 32;
  memory += Config::kWeightQuads * sizeof(float4) * blockDim.x;
  auto* terms = reinterpret_cast<Terms*>(memory);  // of two steps in turn
  memory += 2 * sizeof(Terms) * blockDim.x;
  auto* statistics = reinterpret_cast<Statistics*>(memory);  // of three steps in turn
  memory += 3 * sizeof(Statistics) * blockDim.x;
  Sums sums(tile, layout, memory, of_cluster);
  typename Ring::Inputs inputs;
  inputs[0] = {params.x, params.x_row_stride, static_cast<int>(params.x_row_stride - params.cols)};
  inputs[1] = {params.dy, params.dy_row_stride, static_cast<int>(params.dy_row_stride - params.cols)};
  if constexpr (Config::kResidual)
    inputs[2] = {params.dsum, params.dsum_row_stride, static_cast<int>(params.dsum_row_stride - params.cols)};
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < Ring::kAhead; ++k) ring.request(steps, k, inputs);

  /// Of this thread's row of step k; zeros where there is none, so that nothing becomes NaN.
  const auto load_statistics = [&](int k) {
    if (k >= steps.count() || static_cast<int>(threadIdx.x) >= steps.at(k).rows) return Statistics{0.0f, 0.0f};
    const int64_t row = steps.first_row(k) + threadIdx.x;
    return Statistics{__ldg(static_cast<const float*>(params.mean) + row),
                      __ldg(static_cast<const float*>(params.rstd) + row)};
  };
  statistics[threadIdx.x] = load_statistics(0);
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    Floats f;
    tile.load_columns(which == 0 ? params.weight : params.bias, f);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        constexpr float kScale = Config::kScaled ? cuda::kGaussScale : 1.0f;
        weights[((2 * i + which) * kQuads + q) * 32] = make_float4(
            f[i][4 * q] * kScale, f[i][4 * q + 1] * kScale, f[i][4 * q + 2] * kScale, f[i][4 * q + 3] * kScale);
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
  /// dH of step k, the sums for dW and dB, and the parts of its rows' sums.
  const auto post = [&](int k, Floats& dh) {
    ring.template wait<Ring::kAhead - 2>(k);
    const StepSlot slot = ring.slot(k);
    const Step step = steps.at(k);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!tile.is_in(step, i)) continue;
      float h[kVecSize], dz[kVecSize], w[kVecSize], b[kVecSize];
      cuda::unpack(ring.vec(slot, 0, i), h);
      cuda::unpack(ring.vec(slot, 1, i), dz);
      weights_of(i, 0, w);
      weights_of(i, 1, b);
      tile.with_rows(i, statistics + k % 3 * blockDim.x, [&](int from, int until, const Statistics& row) {
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          if (j < from || j >= until) continue;
          h[j] = Config::k16Bit ? fmaf(h[j], row.y, -row.x * row.y) : (h[j] - row.x) * row.y;
        }
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
      sums.post(k, i, [&](int from, int until) {
        Part part{0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          if (j >= from && j < until) part.x += dh[i][j], part.y = fmaf(dh[i][j], h[j], part.y);
        }
        return part;
      });
    }
  };
  const auto add_up = [&](int k) {
    sums.each_row(k, steps.at(k).rows, [&](int row, bool leads, auto&& each) {
      float sum = 0.0f, sum_h = 0.0f;
      each([&](const Part& part, int) { sum += part.x, sum_h += part.y; });
      sums.add(k, 0, sum, sum_h);
      if (row < 0 || !leads) return;
      terms[k % 2 * blockDim.x + row] = gradient_terms<Config>(statistics[k % 3 * blockDim.x + row],
                                                               sum * inverse_cols, sum_h * inverse_cols);
    });
  };
  const auto finish = [&](int k, const Floats& dh) {
    const StepSlot slot = ring.slot(k);
    const Step step = steps.at(k);
    Element* dx = static_cast<Element*>(params.dx) + steps.first_element(k);
    cuda::ptx::opaque(dx);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!tile.is_in(step, i)) continue;
      float f[kVecSize];
      cuda::unpack(ring.vec(slot, 0, i), f);
      tile.with_rows(i, terms + k % 2 * blockDim.x, [&](int from, int until, const Terms& row) {
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          if (j < from || j >= until) continue;
          if constexpr (Config::k16Bit) {
            f[j] = fmaf(dh[i][j], row.scale, fmaf(f[j], row.slope, row.shift));
          } else {
            f[j] = row.scale * (fmaf((f[j] - row.mean) * row.scale, row.slope, dh[i][j]) + row.shift);
          }
        }
      });
      if constexpr (Config::kResidual) {
        float more[kVecSize];
        cuda::unpack(ring.vec(slot, 2, i), more);
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) f[j] += more[j];
      }
      tile.store(step, dx, i, cuda::pack<Element>(f), ring.at(slot, 0, i));
    }
  };

  Floats dh, next_dh = {};
#pragma unroll 1
  for (int k = -1; k < steps.count(); ++k) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) dh[i][j] = next_dh[i][j];
    }
    const Statistics ahead = load_statistics(k + 2);
    if (k + 1 < steps.count()) post(k + 1, next_dh);
    statistics[(k + 2) % 3 * blockDim.x + threadIdx.x] = ahead;
    __syncthreads();  // as in forward_steps
    if (k + 1 < steps.count()) add_up(k + 1);
    if (k < 0) continue;
    ring.request(steps, k + Ring::kAhead, inputs);
    finish(k, dh);
  }

  cuda::ptx::launch_dependents();  // add_partials_kernel may start now; it waits for this kernel's end
  // The threads' sums in the order of the step's elements, then over its rows.
  auto* elements = reinterpret_cast<float*>(shared);
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    __syncthreads();  // nothing of what lies there is read any more
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!tile.is_in({0, layout.rows * layout.cols, false}, i)) continue;
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) elements[tile.place(i) + j] = which == 0 ? dweight[i][j] : dbias[i][j];
    }
    __syncthreads();
    const int begin = cuda::larger(-tile.offset(), 0);  // the block's columns
    const int end = cuda::smaller(layout.cols, Tile::capacity() - tile.offset());
    for (int column = begin + static_cast<int>(threadIdx.x); column < end; column += static_cast<int>(blockDim.x)) {
      float sum = 0.0f;
#pragma unroll 8
      for (int row = 0; row < layout.rows; ++row) sum += elements[row * layout.cols + column + tile.offset()];
      if constexpr (Config::kScaled) sum *= 0.5f;
      if (params.partial == nullptr) {
        static_cast<Element*>(which == 0 ? params.dweight : params.dbias)[column] = cuda::from_float<Element>(sum);
      } else {
        const int64_t row = 2 * int64_t{Team<kHopper>::index()} + which;
        static_cast<float*>(params.partial)[row * params.cols + column] = sum;
      }
    }
  }
  sums.finish();
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    backward_steps_kernel(const __grid_constant__ BackwardParams params,
                          const __grid_constant__ StepLayout layout) {
  backward_steps<Config, cuda::ptx::kHasBulkCopies>(params, layout);
}

}  // namespace plab::ops::layer_norm_gelu
