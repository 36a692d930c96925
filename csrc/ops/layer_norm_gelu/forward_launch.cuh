// SPDX-License-Identifier: Apache-2.0
// Which configuration of the forward kernel serves which rows. Measured by
// benchmarks/layer_norm_gelu_sweep.py.
#pragma once

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
template <class Element>
RowPlan plan_forward(int64_t cols, bool is_aligned) {
  if constexpr (sizeof(Element) == 2) return plan_row(cols, 8, {4, 3, 2, 1}, is_aligned);
  return plan_row(cols, 4, {8, 6, 4, 2, 1}, is_aligned);
}

/// The simplest scheme is best for fp32, with one row a group, and for 16-bit rows of 32 columns a thread,
/// with a few. `resident`: threads on a multiprocessor.
template <class Tile, class Group, GeluForm kForm, bool kResidual>
void launch_forward_direct(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  constexpr bool k16Bit = sizeof(typename Tile::Element) == 2;
  constexpr int kResident = Group::kIsWarp && !k16Bit && Tile::kElements == 32 ? 768 : 1024;
  using Config = ForwardConfig<Tile, Group, kResident, Weights::kCached, 0, kForm, kResidual>;
  const int waves = k16Bit || threads_per_row == kMaxThreadsPerRow ? 16 : 1 << 14;
  start<Config>(
      forward_direct_kernel<Config>,
      plan_launch<Config, forward_direct_kernel<Config>>(params.rows, threads_per_row, waves, false), params,
      stream);
}

/// Weights and biases of a thread's columns are in registers, in fp32: 64 of 128 for 32 columns. The rows
/// come through shared memory. False where that does not suffice.
template <class Tile, class Group, int kResident, int kStages, GeluForm kForm, bool kResidual>
bool launch_forward_ring(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  using Config = ForwardConfig<Tile, Group, kResident, Weights::kFloats, kStages, kForm, kResidual>;
  if (!fits<Config>(threads_per_row)) return false;
  const bool one_block_each = threads_per_row == kMaxThreadsPerRow;  // runs of rows are better then
  start<Config>(forward_kernel<Config>,
                plan_launch<Config, forward_kernel<Config>>(params.rows, threads_per_row,
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
  bool done = false;
  if (plan.vecs > 0) {
    dispatch_forward_tile<Element>(plan, [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
      if constexpr (sizeof(Element) == 2 && Tile::kAccess == Access::kExact) {
        if constexpr (!Group::kIsWarp && Tile::kVecs == 4) {
          done = plan.threads == kMaxThreadsPerRow &&
                 launch_forward_ring<Tile, Group, 640, 3, kForm, kResidual>(params, plan.threads, stream);
        } else if constexpr (Group::kIsWarp && Tile::kVecs < 4) {
          constexpr bool k24Columns = Tile::kVecs == 3;
          done =
              launch_forward_ring<Tile, Group, k24Columns ? 512 : 640, k24Columns ? 3 : 4, kForm, kResidual>(
                  params, plan.threads, stream);
        }
        if (done) return;
      }
      launch_forward_direct<Tile, Group, kForm, kResidual>(params, plan.threads, stream);
      done = true;
    });
  } else if (is_aligned) {
    done = launch_forward_wide(params, stream);
  }
  if (!done) launch_forward_long<Element, kForm>(params, stream);
}

}  // namespace plab::ops::layer_norm_gelu
