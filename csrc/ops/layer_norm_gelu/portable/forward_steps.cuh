// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward, step by step (step.cuh).
//
// Mapping   a block, or a cluster, takes one step after the other; 32 columns a thread, in fp32 24. The next steps are
//           prefetched into shared memory. Weight and bias of a thread's columns stay in registers, as fp32. While
//           a step is finished, one or a few warps of the block add up the sums of the next.
// Bytes     as in forward.cuh.
// Flops     about 30 per element.
// Roof      memory; README.md counts the instructions.
// Contract  layer_norm_gelu.h; at least a vector's number of columns. Packed: a step begins and ends at 16 bytes in
//           every matrix, and rows that share a vector have no gaps between them. Shifted: a team's rows start at the
//           same distance from a multiple of 16 bytes in every matrix.
#pragma once

#include "cuda/math.cuh"
#include "ops/layer_norm_gelu/portable/statistics.cuh"
#include "ops/layer_norm_gelu/portable/step.cuh"
#include "ops/layer_norm_gelu/portable/step_sums.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads threads must fit on an SM together, which limits the registers of each.
template <class Element_, GeluForm kForm_, bool kResidual_, int kColumns = sizeof(Element_) == 2 ? 32 : 24,
          int kResidentThreads_ = 512, int kStages_ = kResidual_ ? 3 : 4>
struct ForwardStepsConfig {
  using Element = Element_;
  using Tile = StepTile<Element, kColumns>;
  static constexpr GeluForm kForm = kForm_;
  static constexpr bool kResidual = kResidual_;
  static constexpr bool kExactSlope = sizeof(Element) == 4;
  static constexpr int kResidentThreads = kResidentThreads_, kStages = kStages_;
  template <bool kHopper>
  using Ring = StepRing<Tile, kStages, kResidual ? 2 : 1, kHopper>;

  /// Of some elements of a row: sums of what they differ by from the first of them, and of its square. In bf16 the
  /// squares need no such care: they are exact, and so are the sums of a few.
  static constexpr bool kHasPivot = !std::is_same_v<Element, __nv_bfloat16>;
  struct PartWithPivot {
    float sum, squares, pivot, unused;
  };
  struct PlainPart {
    float sum, squares;
    static constexpr float pivot = 0.0f;
  };
  using Part = std::conditional_t<kHasPivot, PartWithPivot, PlainPart>;
  template <bool kHopper>
  using Sums = StepSums<Tile, Part, 2, kHopper>;

  /// What normalises the elements of a row: as in RowStatistics.
  struct Terms {
    float slope, offset, centre, slope_rest;
  };
  static constexpr int kBytesPerThread =
      Ring<true>::kBytes + 2 * static_cast<int>(sizeof(Terms)) + Sums<true>::kBytes;
};

/// Of elements `from` to `until` of a vector.
template <class Config>
__device__ __forceinline__ typename Config::Part part_of(const float (&x)[Config::Tile::kVecSize], int from,
                                                         int until) {
  typename Config::Part part{};
#pragma unroll
  for (int j = 0; j < Config::Tile::kVecSize; ++j) {
    if constexpr (Config::kHasPivot) {
      if (j == from) part.pivot = x[j];
    }
    if (j >= from && j < until) {
      const float d = x[j] - part.pivot;
      part.sum += d;
      part.squares = fmaf(d, d, part.squares);
    }
  }
  return part;
}

/// All lanes of a warp; `each` as in StepSums::each_row.
template <class Config, class Sums, class Each>
__device__ __forceinline__ RowStatistics statistics_of_parts(const Sums& sums, int step, Each&& each,
                                                             float inverse_cols, float eps, bool alone) {
  using Part = typename Config::Part;
  float mean = 0.0f, squares = 0.0f;
  each([&](const Part& part, int count) {
    mean = fmaf(part.pivot * inverse_cols, static_cast<float>(count), fmaf(part.sum, inverse_cols, mean));
    squares += part.squares;
  });
  sums.add(step, 0, mean, squares);
  if constexpr (!Config::kHasPivot) {
    const float variance = fmaf(-mean, mean, squares * inverse_cols);
    const bool near = one_pass_is_enough(mean, variance);
    if (alone && __all_sync(cuda::kAllLanes, near)) return one_pass_statistics(mean, variance, eps);
  }
  // Each part about its own mean, which its few elements give accurately, and then about the row's.
  float rest = 0.0f;
  squares = 0.0f;
  each([&](const Part& part, int elements) {
    const float count = static_cast<float>(elements), d = part.pivot - mean;
    const float of_part =
        elements == Config::Tile::kVecSize ? part.sum * (1.0f / Config::Tile::kVecSize) : part.sum / count;
    rest += fmaf(count, d, part.sum);
    squares += fmaf(count * (d + of_part), d + of_part, fmaf(-part.sum, of_part, part.squares));
  });
  sums.add(step, 1, rest, squares);
  return two_pass_statistics<Config::kExactSlope>(mean, rest * inverse_cols, squares * inverse_cols, eps);
}

template <class Config, bool kHopper>
__device__ __forceinline__ void forward_steps(const ForwardParams& params, const StepLayout& layout) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kHopper>;
  using Sums = typename Config::template Sums<kHopper>;
  using Terms = typename Config::Terms;
  using Element = typename Config::Element;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize;
  static __shared__ typename Ring::Barriers barriers;
  static __shared__ typename Sums::OfCluster::Storage of_cluster;
  char* shared = reinterpret_cast<char*>(cuda::ptx::dynamic_shared());
  const float eps = static_cast<float>(params.eps), inverse_cols = layout.inverse_cols;
  const bool alone = Team<kHopper>::size() == 1;

  const TeamSteps steps(layout, params.rows, Team<kHopper>::index(), Team<kHopper>::count());
  const Tile tile(layout, static_cast<const Element*>(params.x) + steps.first_row(0) * params.x_row_stride,
                  Team<kHopper>::rank());
  Ring ring(tile, layout, shared, barriers);
  shared += Ring::kBytes * blockDim.x;
  auto* terms = reinterpret_cast<Terms*>(shared);  // of two steps in turn
  Sums sums(tile, layout, terms + 2 * blockDim.x, of_cluster);
  typename Ring::Inputs inputs;
  inputs[0] = {params.x, params.x_row_stride, static_cast<int>(params.x_row_stride - params.cols)};
  if constexpr (Config::kResidual)
    inputs[1] = {params.residual, params.residual_row_stride,
                 static_cast<int>(params.residual_row_stride - params.cols)};
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < Ring::kAhead; ++k) ring.request(steps, k, inputs);
  typename Tile::Floats weight, bias;
  tile.load_columns(params.weight, weight);
  tile.load_columns(params.bias, bias);

  const auto post = [&](int k) {
    ring.template wait<Ring::kAhead - 2>(k);
    const StepSlot slot = ring.slot(k);
    const Step step = steps.at(k);
    [[maybe_unused]] Element* sum = static_cast<Element*>(params.sum) + steps.first_element(k);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!tile.is_in(step, i)) continue;
      cuda::Vec<Element> vec = ring.vec(slot, 0, i);
      if constexpr (Config::kResidual) {
        vec = cuda::add(vec, ring.vec(slot, 1, i));
        ring.put(slot, 0, i, vec);
        tile.store(step, sum, i, vec, ring.at(slot, 1, i));
      }
      float f[kVecSize];
      cuda::unpack(vec, f);
      sums.post(k, i, [&](int from, int until) { return part_of<Config>(f, from, until); });
    }
  };
  const auto add_up = [&](int k) {
    auto* mean_of = static_cast<float*>(params.mean) + steps.first_row(k);
    auto* rstd_of = static_cast<float*>(params.rstd) + steps.first_row(k);
    sums.each_row(k, steps.at(k).rows, [&](int row, bool leads, auto&& each) {
      const RowStatistics s = statistics_of_parts<Config>(sums, k, each, inverse_cols, eps, alone);
      if (row < 0 || !leads) return;
      terms[k % 2 * blockDim.x + row] = {s.slope, s.offset, s.centre, s.slope_rest};
      if (Team<kHopper>::rank() == 0) mean_of[row] = s.mean, rstd_of[row] = s.rstd;
    });
  };
  const auto finish = [&](int k) {
    const StepSlot slot = ring.slot(k);
    const Step step = steps.at(k);
    Element* y = static_cast<Element*>(params.y) + steps.first_element(k);
    cuda::ptx::opaque(y);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (!tile.is_in(step, i)) continue;
      float f[kVecSize];
      cuda::unpack(ring.vec(slot, 0, i), f);
      tile.with_rows(i, terms + k % 2 * blockDim.x, [&](int from, int until, const Terms& row) {
        const auto normalise = [&]<bool kCentred>() {
#pragma unroll
          for (int j = 0; j < kVecSize; ++j) {
            const float x = kCentred ? f[j] - row.centre : f[j];
            const float rest = Config::kExactSlope ? fmaf(x, row.slope_rest, row.offset) : row.offset;
            if (j >= from && j < until) f[j] = fmaf(x, row.slope, rest);
          }
        };
        if (!Config::kExactSlope && row.centre == 0.0f) {
          normalise.template operator()<false>();
        } else {
          normalise.template operator()<true>();
        }
      });
#pragma unroll
      for (int j = 0; j < kVecSize; ++j)
        f[j] = cuda::gelu<Element, Config::kForm>(fmaf(f[j], weight[i][j], bias[i][j]));
      tile.store(step, y, i, cuda::pack<Element>(f), ring.at(slot, 0, i));
    }
  };

#pragma unroll 1
  for (int k = -1; k < steps.count(); ++k) {
    if (k + 1 < steps.count()) post(k + 1);
    __syncthreads();  // the parts of step k + 1 are there, and the terms of step k; step k - 1 is no longer read
    if (k + 1 < steps.count()) add_up(k + 1);
    if (k < 0) continue;
    ring.request(steps, k + Ring::kAhead, inputs);
    finish(k);
  }
  sums.finish();
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    forward_steps_kernel(const __grid_constant__ ForwardParams params,
                         const __grid_constant__ StepLayout layout) {
  forward_steps<Config, cuda::ptx::kHasBulkCopies>(params, layout);
}

}  // namespace plab::ops::layer_norm_gelu
