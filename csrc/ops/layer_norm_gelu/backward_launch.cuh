// SPDX-License-Identifier: Apache-2.0
// Which configuration of the backward kernel serves which rows. Measured by
// benchmarks/layer_norm_gelu/layer_norm_gelu_sweep.py.
#pragma once

#include "ops/layer_norm_gelu/backward.cuh"
#include "ops/layer_norm_gelu/by_element.h"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"
#include "ops/layer_norm_gelu/wide_rows.h"

namespace plab::ops::layer_norm_gelu {

/// Vectors per thread, the best first: 16 columns, or 24, 8 and 4.
template <class Element, class Function>
void dispatch_backward_tile(const RowPlan& plan, Function&& function) {
  if constexpr (sizeof(Element) == 2) {
    dispatch_tile<Element, 2, 3, 1>(plan, function);
  } else {
    dispatch_tile<Element, 4, 6, 2, 1>(plan, function);
  }
}
/// Of so few rows every thread has as little as possible.
constexpr int64_t kFewRows = 8;

template <class Element>
RowPlan plan_backward(int64_t rows, int64_t cols, bool is_aligned) {
  if (rows <= kFewRows) {
    const RowPlan plan = plan_row(cols, cuda::kVecSize<Element>, {1, 2}, is_aligned);
    if (plan.access == Access::kExact) return plan;
  }
  if constexpr (sizeof(Element) == 2) return plan_row(cols, 8, {2, 3, 1}, is_aligned);
  return plan_row(cols, 4, {4, 6, 2, 1}, is_aligned);
}

/// Up to so many rows one block does all, and needs no second kernel.
constexpr int64_t kRowsOfOneBlock = 1;

/// Launches, if `launch`, and returns the number of blocks; 0 where shared memory does not suffice. Each
/// block costs 16 d bytes for its sums: one wave, and of few rows only one block a multiprocessor.
template <class Tile, class Group, int kResident, int kStages, bool kOverlap, bool kInterleaved,
          GeluForm kForm, bool kResidual>
int64_t launch_backward_config(const BackwardParams& params, int threads_per_row, bool launch,
                               cudaStream_t stream) {
  using Config = BackwardConfig<Tile, Group, kResident, kWarpsPerBlock, Weights::kShared, kStages, kOverlap,
                                kForm, kResidual>;
  if (!fits<Config>(threads_per_row)) return 0;
  const int waves = params.rows < 4 * cuda::multiprocessors() ? 0 : 1;
  Launch grid = plan_launch<Config, backward_kernel<Config>>(params.rows, params.cols, threads_per_row, waves,
                                                             kInterleaved);
  if (params.rows <= kRowsOfOneBlock && !Group::kIsWarp)
    grid.units = 1, grid.order.rows_per_group = params.rows;
  if (launch) start<Config>(backward_kernel<Config>, grid, params, stream);
  return grid.units;
}

/// Rows of partial sums that the launch fills, one for each block or cluster; 0: there is only one, and it
/// has written dweight and dbias. Without `launch` only the number is found out.
template <class Element, GeluForm kForm, bool kResidual>
int64_t launch_backward_typed(const BackwardParams& params, bool launch, cudaStream_t stream) {
  const bool is_aligned = aligned(
      {params.dy, params.x, params.weight, params.bias, params.dx, params.dsum},
      {params.dy_row_stride, params.x_row_stride, params.dsum_row_stride, params.cols}, sizeof(Element));
  const RowPlan plan = plan_backward<Element>(params.rows, params.cols, is_aligned);
  constexpr bool k16Bit = sizeof(Element) == 2;
  int64_t units = 0;
  if (plan.vecs > 0) {
    // Two blocks with 256 threads each are better than one with 512, for 16-bit rows.
    if (k16Bit && is_aligned && plan.threads == kMaxThreadsPerRow && params.rows > kFewRows)
      units = launch_backward_wide(params, launch, stream);
    if (units > 0) return units;  // never 1: that is for fewer rows
    dispatch_backward_tile<Element>(plan, [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
      const auto with = [&]<int kResident, int kStages, bool kOverlap, bool kInterleaved>() {
        units =
            launch_backward_config<Tile, Group, kResident, kStages, kOverlap, kInterleaved, kForm, kResidual>(
                params, plan.threads, launch, stream);
      };
      if constexpr (Tile::kAccess != Access::kExact) {
        // With a residual they are left to the kernel for long rows.
        if constexpr (!kResidual) with.template operator()<512, k16Bit ? 3 : 2, false, false>();
      } else if constexpr (Tile::kElements > 16) {
        with.template operator()<512, 3, false, true>();
      } else if constexpr (k16Bit) {
        if constexpr (Group::kIsWarp) {
          with.template operator()<512, 3, true, true>();
        } else {
          with.template operator()<640, 3, false, false>();
        }
      } else {
        if (!Group::kIsWarp && plan.threads > 256 && plan.threads < 512)
          with.template operator()<512, 3, true, true>();
        if (units == 0) with.template operator()<640, 2, false, true>();
      }
    });
  } else if (is_aligned) {
    units = launch_backward_wide(params, launch, stream);
  }
  if (units > 0) return units == 1 ? 0 : units;
  if (launch) launch_backward_long<Element, kForm>(params, stream);
  return long_blocks(params.rows);
}

template <class Element>
int64_t launch_backward_of(const BackwardParams& params, bool launch, cudaStream_t stream) {
  int64_t partial_rows = 0;
  dispatch_form(params.form, [&]<GeluForm kForm>() {
    partial_rows = params.dsum != nullptr
                       ? launch_backward_typed<Element, kForm, true>(params, launch, stream)
                       : launch_backward_typed<Element, kForm, false>(params, launch, stream);
  });
  return partial_rows;
}

}  // namespace plab::ops::layer_norm_gelu
