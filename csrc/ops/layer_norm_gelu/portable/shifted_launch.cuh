// SPDX-License-Identifier: Apache-2.0
// How shifted rows (load.cuh) are distributed over blocks, or over clusters of blocks.
#pragma once

#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {

template <class Element, int kColumns>
using ShiftedTile = RowTile<Element, kColumns / cuda::kVecSize<Element>, Access::kShifted>;

/// In clusters a thread has more columns of fp32, so that longer rows fit.
template <class Element, class Group, GeluForm kForm, bool kResidual, bool k16Bit = sizeof(Element) == 2,
          bool kCluster = Group::kBlocks != 1>
using ShiftedForward = ForwardConfig<ShiftedTile<Element, k16Bit || kCluster ? 32 : 16>, Group,
                                     k16Bit     ? 640
                                     : kCluster ? 512
                                                : 768,
                                     k16Bit ? Weights::kRegisters : Weights::kFloats, 3, kForm, kResidual>;

template <class Element, class Group, GeluForm kForm, bool kResidual, bool k16Bit = sizeof(Element) == 2>
using ShiftedBackward = BackwardConfig<ShiftedTile<Element, 16>, Group, k16Bit ? 640 : 512, kWarpsPerBlock,
                                       Weights::kShared, k16Bit ? 3 : 2, false, kForm, kResidual>;

/// Blocks that share a row, threads of each, and vectors of a thread that are used.
struct ShiftedShape {
  int blocks = 0, threads = 0, vecs = 0;
};

/// The most vectors that a row of `cols` columns has elements in.
inline int64_t shifted_vecs(int64_t cols, int vec_size) {
  const int largest_shift = vec_size - vec_size / rows_per_bundle(cols, vec_size);  // in elements
  return cuda::ceil_div<int64_t>(cols + largest_shift, vec_size);
}

/// The fewest threads, in whole warps, of each of `blocks` blocks.
inline ShiftedShape shifted_shape(int64_t vecs_of_row, int blocks, int vecs_of_thread) {
  const int64_t threads = cuda::ceil_div<int64_t>(vecs_of_row, int64_t{blocks} * vecs_of_thread);
  const int64_t whole = cuda::ceil_div<int64_t>(threads, cuda::kWarpSize) * cuda::kWarpSize;
  return {blocks, static_cast<int>(whole), vecs_of_thread};
}

/// Every group takes rows that lie a multiple of rows_per_bundle apart. Without a kernel where the rows do not fit.
/// `waves`: times as many groups as are resident at once.
template <class Config, auto kKernel>
Plan plan_shifted(int64_t rows, int64_t cols, const ShiftedShape& shape, int waves) {
  constexpr bool kIsCluster = Config::Group::kBlocks != 1;
  constexpr int kStatic = sizeof(typename Config::Group::Storage);
  const int shared_bytes = Config::shared_bytes(shape.threads, shape.threads);
  if (shared_bytes + kStatic > cuda::max_shared_bytes()) return {};
  int64_t resident;
  if constexpr (kIsCluster) {
    resident = cuda::clusters_of_any_size<kKernel>(shape.blocks, shape.threads, shared_bytes);
  } else {
    resident = int64_t{cuda::blocks_per_sm<kKernel>(shape.threads, shared_bytes)} * cuda::sm_count();
  }
  const int period = rows_per_bundle(cols, Config::Tile::kVecSize);
  int64_t groups = cuda::smaller(rows, resident * waves);
  if (groups < rows) groups = cuda::larger<int64_t>(groups / period * period, period);
  Plan plan;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.blocks = groups * shape.blocks;
  plan.threads = shape.threads;
  plan.shared_bytes = shared_bytes;
  plan.cluster = kIsCluster ? shape.blocks : 0;
  plan.order = RowOrder{cuda::ceil_div(rows, groups), true, 0, 1.0f / static_cast<float>(cols), shape.vecs};
  plan.workspace_rows = groups > 1 ? groups : 0;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::portable
