// SPDX-License-Identifier: Apache-2.0
// How rows are dealt to the kernels of packed.cuh.
#pragma once

#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/packed.cuh"

namespace plab::ops::layer_norm_gelu::portable {

/// Rows after which a row starts at the same distance from a multiple of 16 bytes again.
template <class Element>
int rows_per_bundle(int64_t cols) {
  int rows = 1;
  while (rows * cols % cuda::kVecSize<Element> != 0) rows *= 2;
  return rows;
}

/// Threads of a block, and bundles of a step.
struct PackedShape {
  int threads, bundles;
};

/// The plan of a shape. `waves`: times as many blocks as are resident at once.
template <class Config, auto kKernel>
Plan plan_packed(int64_t rows, int64_t cols, const PackedShape& shape, int waves, bool interleaved) {
  using Element = typename Config::Element;
  const int shared_bytes = Config::kBytesPerThread * shape.threads;
  Plan plan;
  Packing& packing = plan.packing;
  packing.cols = static_cast<int>(cols);
  packing.rows_per_bundle = rows_per_bundle<Element>(cols);
  packing.rows = packing.rows_per_bundle * shape.bundles;
  // A thread adds up about eight vectors of a row.
  while (packing.lanes_per_row_log2 < 5 && (cols >> packing.lanes_per_row_log2) > 8 * cuda::kVecSize<Element>)
    ++packing.lanes_per_row_log2;
  packing.inverse_cols = 1.0f / static_cast<float>(cols);
  packing.steps = cuda::ceil_div<int64_t>(rows, packing.rows);
  const int64_t resident = int64_t{cuda::blocks_per_sm<kKernel>(shape.threads, shared_bytes)} * cuda::sm_count();
  const cuda::RowRuns runs = cuda::cut_rows(packing.steps, resident, waves);
  packing.steps_per_block = runs.rows_per_group;
  packing.interleaved = interleaved;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.blocks = runs.groups;
  plan.threads = shape.threads;
  plan.shared_bytes = shared_bytes;
  plan.argument = Plan::Argument::kPacking;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::portable
