// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward for packed rows (packed.cuh).
//
// Mapping   a block takes every n-th step; 32 columns a thread, in fp32 16. The next steps are prefetched into
//           shared memory, where weight and bias lie too, as fp32.
// Bytes     as in forward.cuh.
// Flops     about 30 per element.
// Roof      memory; README.md counts the instructions.
// Contract  layer_norm_gelu.h, no residual; at least a vector's number of columns; no gaps between rows; every matrix
//           starts at 16 bytes. Without kSplit so does each row.
#pragma once

#include "cuda/math.cuh"
#include "ops/layer_norm_gelu/portable/packed.cuh"
#include "ops/layer_norm_gelu/portable/statistics.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads threads must fit on an SM together, which limits the registers of each.
template <class Element_, bool kSplit, GeluForm kForm_, int kColumns = sizeof(Element_) == 2 ? 32 : 16,
          int kResidentThreads_ = 768, int kStages = 2>
struct PackedForwardConfig {
  using Element = Element_;
  using Tile = PackedTile<Element, kColumns, kSplit>;
  template <bool kBulk>
  using Ring = PackedRing<Tile, kStages, 1, kBulk>;
  using Weights = PackedWeights<Tile, Element>;
  static constexpr GeluForm kForm = kForm_;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr float kAlone = 0.95f;  // measured, as in the backward
  static constexpr bool kTwoPasses = sizeof(Element) == 4;

  /// Of some elements of a row: sums of what they differ by from the row's centre, or in fp32 from the first of them,
  /// and of its square.
  struct PartWithPivot {
    float sum, squares, pivot, unused;
  };
  struct PlainPart {
    float sum, squares;
  };
  using Part = std::conditional_t<kTwoPasses, PartWithPivot, PlainPart>;
  using Sums = PackedSums<Tile, Part>;

  /// What normalises the elements of a row: as in RowStatistics.
  struct alignas(16) Terms {
    float slope, offset, centre, slope_rest;
  };
  static constexpr int kBytesPerThread = Ring<true>::kBytes + static_cast<int>(sizeof(Terms)) + Sums::kBytes;
};

/// Of elements `from` to `until` of a vector.
template <class Config>
__device__ __forceinline__ typename Config::Part part_of(const float (&x)[Config::Tile::kVecSize], int from,
                                                         int until, float centre) {
  typename Config::Part part{};
#pragma unroll
  for (int j = 0; j < Config::Tile::kVecSize; ++j) {
    if constexpr (Config::kTwoPasses) {
      if (j == from) part.pivot = centre = x[j];
    }
    if (j >= from && j < until) {
      const float d = x[j] - centre;
      part.sum += d;
      part.squares = fmaf(d, d, part.squares);
    }
  }
  return part;
}

/// Averages of what plain parts are the sums of. All lanes of a warp; `each` as in PackedSums::each_row.
template <class Config, class Each>
__device__ __forceinline__ float2 averages_of_parts(const typename Config::Sums& sums, Each&& each,
                                                    float inverse_cols) {
  float mean = 0.0f, squares = 0.0f;
  each([&](const typename Config::Part& part, int) {
    mean = fmaf(part.sum, inverse_cols, mean);
    squares += part.squares;
  });
  sums.add(mean, squares);
  return {mean, squares * inverse_cols};
}

/// Of parts with pivots: each about its own mean, which its few elements give accurately, and then about the row's.
template <class Config, class Each>
__device__ __forceinline__ RowStatistics statistics_of_parts(const typename Config::Sums& sums, Each&& each,
                                                             float inverse_cols, float eps) {
  using Part = typename Config::Part;
  float mean = 0.0f, rest = 0.0f, squares = 0.0f;
  each([&](const Part& part, int count) {
    mean = fmaf(part.pivot * inverse_cols, static_cast<float>(count), fmaf(part.sum, inverse_cols, mean));
    // Not needed, but so the part is read whole: loads of 4 bytes each would conflict for banks.
    squares += part.squares;
  });
  sums.add(mean, squares);
  squares = 0.0f;
  each([&](const Part& part, int elements) {
    const float count = static_cast<float>(elements), d = part.pivot - mean;
    const float of_part =
        elements == Config::Tile::kVecSize ? part.sum * (1.0f / Config::Tile::kVecSize) : part.sum / count;
    rest += fmaf(count, d, part.sum);
    squares += fmaf(count * (d + of_part), d + of_part, fmaf(-part.sum, of_part, part.squares));
  });
  sums.add(rest, squares);
  return two_pass_statistics<true>(mean, rest * inverse_cols, squares * inverse_cols, eps);
}

template <class Config, bool kBulk>
__device__ __forceinline__ void packed_forward(const ForwardParams& params, const Packing& packing) {
  using Tile = typename Config::Tile;
  using Ring = typename Config::template Ring<kBulk>;
  using Terms = typename Config::Terms;
  using Element = typename Config::Element;
  constexpr int kVecs = Tile::kVecs, kVecSize = Tile::kVecSize;
  static __shared__ typename Ring::Barriers barriers;
  char* shared = reinterpret_cast<char*>(cuda::ptx::dynamic_shared());
  const float eps = static_cast<float>(params.eps), inverse_cols = packing.inverse_cols;
  const PackedSteps steps(packing, params.rows);
  const Tile tile(packing);
  Ring ring(tile, packing, shared, barriers);
  shared += Ring::kBytes * blockDim.x;
  auto* terms = reinterpret_cast<Terms*>(shared);
  shared += sizeof(Terms) * blockDim.x;
  typename Config::Sums sums(tile, packing, shared);
  shared += Config::Sums::kBytes * blockDim.x;
  const typename Ring::Inputs inputs = {params.x};
  __syncthreads();
#pragma unroll 1
  for (int k = 0; k < Ring::kAhead; ++k) ring.request(steps, k, inputs);
  const typename Config::Weights weights(packing, shared, params.weight, params.bias, 1.0f);
  // A last step has elements written by hand, by the lanes of one warp. __syncwarp and then the step's mbarrier order
  // them before the reads, but racecheck follows only the lane that arrives there: where no block barrier of the loop
  // lies in between, this one shows the order.
  if (steps.count() <= Ring::kAhead) __syncthreads();

#pragma unroll 1
  for (int k = 0; k < steps.count(); ++k, ring.advance()) {
    const PackedStep step = steps.at(k);
    ring.wait();
    const auto post = [&](auto&& centre_of) {
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        float f[kVecSize];
        cuda::unpack(ring.vec(0, i), f);
        sums.post(
            i, [&](int from, int until, int row) { return part_of<Config>(f, from, until, centre_of(row)); });
      }
      __syncthreads();
    };
    const auto put = [&](int row, const RowStatistics& s) {
      terms[row] = {s.slope, s.offset, s.centre, s.slope_rest};
      static_cast<float*>(params.mean)[steps.first_row(k) + row] = s.mean;
      static_cast<float*>(params.rstd)[steps.first_row(k) + row] = s.rstd;
    };
    post([](int) { return 0.0f; });
    ring.request(steps, k + Ring::kAhead, inputs);
    bool far = false;
    sums.each_row(step.rows, [&](int row, bool leads, auto&& each) {
      RowStatistics s;
      if constexpr (Config::kTwoPasses) {
        s = statistics_of_parts<Config>(sums, each, inverse_cols, eps);
      } else {
        const float2 averages = averages_of_parts<Config>(sums, each, inverse_cols);
        const float mean = averages.x, variance = fmaf(-mean, mean, averages.y);
        s = one_pass_statistics(mean, variance, eps);
        if (!one_pass_is_enough(mean, variance)) s.centre = mean, far = true;
      }
      if (row >= 0 && leads) put(row, s);
    });
    if constexpr (Config::kTwoPasses) {
      __syncthreads();
    } else if (__syncthreads_or(far)) {  // rare; in these steps rows near zero get the same sums again
      post([&](int row) { return terms[row].centre; });
      sums.each_row(step.rows, [&](int row, bool leads, auto&& each) {
        const float2 averages = averages_of_parts<Config>(sums, each, inverse_cols);
        if (row < 0 || !leads || terms[row].centre == 0.0f) return;
        put(row, two_pass_statistics<false>(terms[row].centre, averages.x, averages.y, eps));
      });
      __syncthreads();
    }
    Element* y = static_cast<Element*>(params.y) + steps.first_element(k);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      float f[kVecSize], weight[kVecSize], bias[kVecSize];
      cuda::unpack(ring.vec(0, i), f);
      tile.with_rows(i, terms, [&]<class Of>(const Of& of) {
        const auto normalise = [&]<bool kCentred>() {
#pragma unroll
          for (int j = 0; j < kVecSize; ++j) {
            const Terms row = of(j);
            const float x = kCentred ? f[j] - row.centre : f[j];
            f[j] = fmaf(x, row.slope, Config::kTwoPasses ? fmaf(x, row.slope_rest, row.offset) : row.offset);
          }
        };
        if (!Config::kTwoPasses && Of::kIsOne && of(0).centre == 0.0f) {
          normalise.template operator()<false>();
        } else {
          normalise.template operator()<true>();
        }
      });
      weights.get(tile, i, weight, bias);
#pragma unroll
      for (int j = 0; j < kVecSize; ++j)
        f[j] = cuda::gelu<Element, Config::kForm>(fmaf(f[j], weight[j], bias[j]));
      tile.store(step, y, i, cuda::pack<Element>(f));
    }
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    packed_forward_kernel(const __grid_constant__ ForwardParams params,
                          const __grid_constant__ Packing packing) {
  packed_forward<Config, cuda::ptx::kHasBulkCopies>(params, packing);
}

}  // namespace plab::ops::layer_norm_gelu
