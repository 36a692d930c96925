// SPDX-License-Identifier: Apache-2.0
// Which configuration of the forward kernel serves which rows. Measured by
// benchmarks/layer_norm_gelu/layer_norm_gelu_sweep.py.
#pragma once

#include "ops/layer_norm_gelu/by_element.h"
#include "ops/layer_norm_gelu/forward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"
#include "ops/layer_norm_gelu/wide_rows.h"

namespace plab::ops::layer_norm_gelu {

/// Vectors per thread, the best first: 32 columns, or 24, 16, 8.
template <class Element, class Function>
void dispatch_forward_tile(const RowPlan& plan, Function&& function) {
  if constexpr (sizeof(Element) == 2) {
    dispatch_tile<Element, 4, 3, 2, 1>(plan, function);
  } else {
    dispatch_tile<Element, 8, 6, 4, 2, 1>(plan, function);
  }
}
constexpr int kHalfWarp = 16, k48Columns = 48 / 8;
constexpr int64_t kManyColumnsEach =
    8192;  // above, a thread of 16-bit rows has 64 columns where that comes out even

template <class Element>
RowPlan plan_forward(int64_t cols, bool is_aligned) {
  constexpr bool k16Bit = sizeof(Element) == 2;
  constexpr int k32Columns = 32 / cuda::kVecSize<Element>;
  if (is_aligned && cols == 32 * kHalfWarp) return {kHalfWarp, k32Columns, Access::kExact};
  if (k16Bit && is_aligned && cols == 48 * kHalfWarp) return {kHalfWarp, k48Columns, Access::kExact};
  if (k16Bit && is_aligned && cols > kManyColumnsEach && cols <= 2 * kManyColumnsEach && cols % 2048 == 0)
    return {static_cast<int>(cols / 64), 2 * k32Columns, Access::kExact};
  if constexpr (k16Bit) return plan_row(cols, 8, {4, 3, 2, 1}, is_aligned);
  return plan_row(cols, 4, {8, 6, 4, 2, 1}, is_aligned);
}

/// A row straight into registers. Each group has one row, so that the hardware hands out rows in the order of
/// memory to whoever is free, and calls into L2 the row of the group that will be started when half of those
/// that run have ended. Of short rows, a few: starting a block costs too.
template <class Tile, class Group, GeluForm kForm, bool kResidual>
void launch_forward_direct(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  constexpr int kResident = Tile::kElements > 48 ? 512 : Group::kIsWarp && Tile::kElements >= 32 ? 768 : 1024;
  constexpr int kAsManyAsRows = 1 << 24;  // waves
  using Config = ForwardConfig<Tile, Group, kResident, Weights::kCached, 0, kForm, kResidual>;
  Launch launch = plan_launch<Config, forward_direct_kernel<Config>>(
      params.rows, params.cols, threads_per_row, Config::kOneRow ? kAsManyAsRows : 16, false);
  launch.order.groups_ahead /= 2;
  start<Config>(forward_direct_kernel<Config>, launch, params, stream);
}

/// For clusters. Weights and biases of a thread's columns are in registers, in fp32: 64 of 128 for 32
/// columns. The rows come through shared memory. False where that does not suffice.
template <class Tile, class Group, int kResident, int kStages, GeluForm kForm, bool kResidual>
bool launch_forward_ring(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  using Config = ForwardConfig<Tile, Group, kResident, Weights::kFloats, kStages, kForm, kResidual>;
  if (!fits<Config>(threads_per_row)) return false;
  const bool one_block_each = threads_per_row == kMaxThreadsPerRow;  // runs of rows are better then
  start<Config>(forward_kernel<Config>,
                plan_launch<Config, forward_kernel<Config>>(params.rows, params.cols, threads_per_row,
                                                            one_block_each ? 1 : 4, !one_block_each),
                params, stream);
  return true;
}

template <class Element, GeluForm kForm, bool kResidual>
void launch_forward_typed(const ForwardParams& params, cudaStream_t stream) {
  const bool is_aligned =
      aligned({params.x, params.weight, params.bias, params.y, params.residual, params.sum},
              {params.x_row_stride, params.residual_row_stride, params.cols}, sizeof(Element));
  const RowPlan plan = plan_forward<Element>(params.cols, is_aligned);
  constexpr int k32Columns = 32 / cuda::kVecSize<Element>;
  const auto direct = [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
    launch_forward_direct<Tile, Group, kForm, kResidual>(params, plan.threads, stream);
  };
  if (plan.threads == kHalfWarp && plan.vecs > k32Columns) {
    if constexpr (sizeof(Element) == 2)
      direct(Tag<RowTile<Element, k48Columns, Access::kExact, kHalfWarp>>{},
             Tag<cuda::LanePairSum<kHalfWarp>>{});
  } else if (plan.threads == kHalfWarp) {
    direct(Tag<RowTile<Element, k32Columns, Access::kExact, kHalfWarp>>{},
           Tag<cuda::LanePairSum<kHalfWarp>>{});
  } else if (plan.vecs > k32Columns) {
    if constexpr (sizeof(Element) == 2)
      direct(Tag<RowTile<Element, 2 * k32Columns, Access::kExact>>{}, Tag<cuda::BlockPairSum>{});
  } else if (plan.vecs > 0) {
    dispatch_forward_tile<Element>(plan, direct);
  } else if (!is_aligned || !launch_forward_wide(params, stream)) {
    launch_forward_long<Element, kForm>(params, stream);
  }
}

template <class Element>
void launch_forward_of(const ForwardParams& params, cudaStream_t stream) {
  dispatch_form(params.form, [&]<GeluForm kForm>() {
    if (params.residual != nullptr) return launch_forward_typed<Element, kForm, true>(params, stream);
    launch_forward_typed<Element, kForm, false>(params, stream);
  });
}

}  // namespace plab::ops::layer_norm_gelu
