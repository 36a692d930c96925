// SPDX-License-Identifier: Apache-2.0
// How shifted rows are dealt to blocks, or to clusters of blocks.
#pragma once

#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {

/// Blocks that share a row, threads of each, and the vectors of a thread that are used.
struct ShiftedShape {
  int blocks, threads, vecs;
};

/// The most vectors that a row has part in.
template <class Element>
int64_t shifted_vecs(int64_t cols) {
  const int period = rows_per_bundle<Element>(cols);
  const int64_t largest_shift = cuda::kVecSize<Element> - cuda::kVecSize<Element> / period;  // in elements
  return cuda::ceil_div<int64_t>(cols + largest_shift, cuda::kVecSize<Element>);
}

/// Every group takes rows that lie a multiple of the period apart. `resident`: groups that are at once.
template <class Config, auto kKernel>
Plan plan_shifted(int64_t rows, int64_t cols, const ShiftedShape& shape, int waves) {
  const int shared_bytes = Config::shared_bytes(shape.threads, shape.threads);
  int64_t resident;
  if (shape.blocks == 1) {
    resident = int64_t{cuda::blocks_per_sm<kKernel>(shape.threads, shared_bytes)} * cuda::sm_count();
  } else {
    resident = cuda::clusters_of_any_size<kKernel>(shape.blocks, shape.threads, shared_bytes);
  }
  const int period = rows_per_bundle<typename Config::Element>(cols);
  int64_t groups = cuda::smaller(rows, resident * waves);
  if (groups < rows) groups = cuda::larger<int64_t>(groups / period * period, period);
  Plan plan;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.blocks = groups * shape.blocks;
  plan.threads = shape.threads;
  plan.shared_bytes = shared_bytes;
  plan.cluster = shape.blocks > 1 ? shape.blocks : 0;
  plan.order = RowOrder{cuda::ceil_div(rows, groups), true, 0, 1.0f / static_cast<float>(cols), shape.vecs};
  plan.workspace_rows = groups;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::portable
