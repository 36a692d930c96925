// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward for packed rows (packed.cuh).
//
// Mapping   as in packed_forward.cuh, 16 columns a thread. A thread keeps dW and dB of its columns in registers over
//           all its steps. At the end the block adds them up over the step's rows and writes them once, as in
//           backward.cuh. All blocks are resident at once.
// Bytes     as in backward.cuh.
// Flops     about 40 per element.
// Roof      memory; README.md counts the instructions.
// Contract  as in packed_forward.cuh.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "ops/layer_norm_gelu/portable/packed.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads: as in PackedForwardConfig. kStages: three steps of fp32 leave too few threads on an SM.
template <class Element_, bool kSplit, GeluForm kForm_, int kColumns = 16, int kResidentThreads_ = 640,
          int kStages = sizeof(Element_) == 2 ? 3 : 2>
struct PackedBackwardConfig {
  using Element = Element_;
  using Tile = PackedTile<Element, kColumns, kSplit>;
  template <bool kBulk>
  using Ring = PackedRing<Tile, kStages, 2, kBulk>;
  using Weights = PackedWeights<Tile, float>;
  using Part = float2;  // of some elements of a row: the sums of dH and of dH H
  using Sums = PackedSums<Tile, Part>;
  static constexpr GeluForm kForm = kForm_;
  static constexpr bool k16Bit = sizeof(Element) == 2;
  /// As in BackwardConfig.
  static constexpr bool kScaled = k16Bit && kForm == GeluForm::kErf;
  static constexpr float kOutScale = kScaled ? 0.5f / cuda::kGaussScale : 1.0f;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr float kAlone = 0.85f;

  using Statistics = float2;  // mean and rstd of a row
  /// What dX follows from, with dH and x. 16 bits: scale dH + slope x + shift, as in backward_kernel. fp32:
  /// scale (dH + slope h + shift), in which the same h as in dH makes the terms cancel.
  struct alignas(16) Terms {
    float scale, slope, shift, mean;
  };
  static constexpr int kBytesPerThread = Ring<true>::kBytes + static_cast<int>(sizeof(Terms)) +
                                         2 * static_cast<int>(sizeof(Statistics)) + Sums::kBytes;
};

template <class Config>
__device__ __forceinline__ typename Config::Terms gradient_terms(const typename Config::Statistics& row,
                                                                 float average, float average_h) {
  const float mean = row.x, rstd = row.y, scale = rstd * Config::kOutScale;
  if constexpr (!Config::k16Bit) return {scale, -average_h, -average, mean};
  const float slope = -average_h * scale * rstd;
  return {scale, slope, fmaf(-mean, slope, -average * scale), mean};
}

template <class Config, bool kBulk>
__device__ __forceinline__ void packed_backward(const BackwardParams& params, const Packing& packing) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kBulk>;
  using Part = typename Config::Part;
  using Statistics = typename Config::Statistics;
  using Terms = typename Config::Terms;
  using Element = typename Config::Element;
  using Floats = typename Tile::Floats;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize;
  static __shared__ typename Ring::Barriers barriers;
  char* const ring_memory = reinterpret_cast<char*>(cuda::ptx::dynamic_shared());
  const float inverse_cols = packing.inverse_cols;
  const PackedSteps steps(packing, params.rows);
  const Tile tile(packing);
  Ring ring(tile, packing, ring_memory, barriers);
  char* shared = ring_memory + Ring::kBytes * blockDim.x;
  auto* terms = reinterpret_cast<Terms*>(shared);
  shared += sizeof(Terms) * blockDim.x;
  auto* statistics = reinterpret_cast<Statistics*>(shared);  // of this step
  shared += sizeof(Statistics) * blockDim.x;
  auto* next_statistics = reinterpret_cast<Statistics*>(shared);
  shared += sizeof(Statistics) * blockDim.x;
  typename Config::Sums sums(tile, packing, shared);
  shared += Config::Sums::kBytes * blockDim.x;
  const typename Ring::Inputs inputs = {params.x, params.dy};
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < Ring::kAhead; ++k) ring.request(steps, k, inputs);
  /// Of this thread's row of step k; zeros where there is none, so that nothing becomes NaN.
  const auto load_statistics = [&](int k) {
    Statistics row{0.0f, 0.0f};
    if (k < steps.count() && static_cast<int>(threadIdx.x) < steps.at(k).rows) {
      const int64_t at = steps.first_row(k) + threadIdx.x;
      row = {__ldg(static_cast<const float*>(params.mean) + at),
             __ldg(static_cast<const float*>(params.rstd) + at)};
    }
    return row;
  };
  statistics[threadIdx.x] = load_statistics(0);
  const typename Config::Weights weights(packing, shared, params.weight, params.bias,
                                         Config::kScaled ? cuda::kGaussScale : 1.0f);
  __syncthreads();

  Floats dweight = {}, dbias = {};
#pragma unroll 1
  for (int k = 0; k < steps.count(); ++k, ring.advance()) {
    const PackedStep step = steps.at(k);
    Floats dh;
    ring.wait();
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      float h[kVecSize], dz[kVecSize], w[kVecSize], b[kVecSize];
      cuda::unpack(ring.vec(0, i), h);
      cuda::unpack(ring.vec(1, i), dz);
      tile.with_rows(i, statistics, [&](const auto& of) {
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          const Statistics row = of(j);
          h[j] = Config::k16Bit ? fmaf(h[j], row.y, -row.x * row.y) : (h[j] - row.x) * row.y;
        }
      });
      weights.get(tile, i, w, b);
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
      sums.post(i, [&](int from, int until, int) {
        Part part{0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          if (j >= from && j < until) part.x += dh[i][j], part.y = fmaf(dh[i][j], h[j], part.y);
        }
        return part;
      });
    }
    __syncthreads();
    const Statistics ahead = load_statistics(k + 1);
    ring.request(steps, k + Ring::kAhead, inputs);
    sums.each_row(step.rows, [&](int row, bool leads, auto&& each) {
      float sum = 0.0f, sum_h = 0.0f;
      each([&](const Part& part, int) { sum += part.x, sum_h += part.y; });
      sums.add(sum, sum_h);
      if (row < 0 || !leads) return;
      terms[row] = gradient_terms<Config>(statistics[row], sum * inverse_cols, sum_h * inverse_cols);
    });
    next_statistics[threadIdx.x] = ahead;
    __syncthreads();
    Element* dx = static_cast<Element*>(params.dx) + steps.first_element(k);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      float f[kVecSize];
      cuda::unpack(ring.vec(0, i), f);
      tile.with_rows(i, terms, [&](const auto& of) {
#pragma unroll
        for (int j = 0; j < kVecSize; ++j) {
          const Terms row = of(j);
          if constexpr (Config::k16Bit) {
            f[j] = fmaf(dh[i][j], row.scale, fmaf(f[j], row.slope, row.shift));
          } else {
            f[j] = row.scale * (fmaf((f[j] - row.mean) * row.scale, row.slope, dh[i][j]) + row.shift);
          }
        }
      });
      tile.store(step, dx, i, cuda::pack<Element>(f));
    }
    Statistics* const swap = statistics;
    statistics = next_statistics, next_statistics = swap;
  }

  cuda::ptx::launch_dependents();  // add_partials_kernel may start now; it waits for this kernel's end
  // The threads' sums in the order of the step's elements, then over its rows.
  auto* elements = reinterpret_cast<float*>(ring_memory);
#pragma unroll 1
  for (int which = 0; which < 2; ++which) {
    __syncthreads();  // nothing of it is read any more
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j)
        elements[tile.first(i) + j] = which == 0 ? dweight[i][j] : dbias[i][j];
    }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < packing.cols;
         column += static_cast<int>(blockDim.x)) {
      float sum = 0.0f;
#pragma unroll 8
      for (int row = 0; row < packing.rows; ++row) sum += elements[row * packing.cols + column];
      if constexpr (Config::kScaled) sum *= 0.5f;
      if (params.partial == nullptr) {
        static_cast<Element*>(which == 0 ? params.dweight : params.dbias)[column] =
            cuda::from_float<Element>(sum);
      } else {
        static_cast<float*>(params.partial)[(2 * int64_t{blockIdx.x} + which) * params.cols + column] = sum;
      }
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    packed_backward_kernel(const __grid_constant__ BackwardParams params,
                           const __grid_constant__ Packing packing) {
  packed_backward<Config, cuda::ptx::kHasBulkCopies>(params, packing);
}

}  // namespace plab::ops::layer_norm_gelu
