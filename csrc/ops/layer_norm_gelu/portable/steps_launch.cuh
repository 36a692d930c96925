// SPDX-License-Identifier: Apache-2.0
// How the rows of step.cuh are dealt to blocks, or to clusters of blocks.
#pragma once

#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/step.cuh"

namespace plab::ops::layer_norm_gelu::portable {

/// Blocks of a team, threads of each, and the bundles of a packed step; none: one row, shifted.
struct StepShape {
  int blocks, threads, bundles;
};

/// The fewest rows that begin and end at 16 bytes. So many rows after a row, one starts at the same distance from a
/// multiple of 16 bytes again.
template <class Element>
int rows_per_bundle(int64_t cols) {
  int rows = 1;
  while (rows * cols % cuda::kVecSize<Element> != 0) rows *= 2;
  return rows;
}

/// The most vectors that a shifted row has part in.
template <class Element>
int64_t shifted_vecs(int64_t cols) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  const int largest_shift = kVecSize - kVecSize / rows_per_bundle<Element>(cols);
  return cuda::ceil_div<int64_t>(cols + largest_shift, kVecSize);
}

/// `waves`: times as many teams as are resident at once. Interleaved order for shifted rows always.
template <class Config, auto kKernel>
Plan plan_steps(int64_t rows, int64_t cols, const StepShape& shape, int waves, bool interleaved) {
  using Element = typename Config::Element;
  Plan plan;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.threads = shape.threads;
  plan.shared_bytes = Config::kBytesPerThread * shape.threads;
  plan.cluster = shape.blocks > 1 ? shape.blocks : 0;
  int64_t resident = cuda::sm_count();
  if (shape.blocks == 1) {
    resident *= cuda::blocks_per_sm<kKernel>(shape.threads, plan.shared_bytes);
  } else {
    resident = cuda::clusters_of_any_size<kKernel>(shape.blocks, shape.threads, plan.shared_bytes);
  }
  const int period = rows_per_bundle<Element>(cols);
  StepLayout& layout = plan.steps;
  layout.cols = static_cast<int>(cols);
  layout.shifted = shape.bundles == 0;
  layout.rows_per_bundle = layout.shifted ? 1 : period;
  layout.rows = layout.shifted ? 1 : period * shape.bundles;
  layout.inverse_cols = 1.0f / static_cast<float>(cols);
  layout.steps = cuda::ceil_div<int64_t>(rows, layout.rows);
  layout.interleaved = interleaved || layout.shifted;
  int64_t teams;
  if (layout.shifted) {
    layout.lanes_per_row_log2 = 5;
    teams = cuda::smaller(rows, resident * waves);
    if (teams < rows) teams = cuda::larger<int64_t>(teams / period * period, period);
    layout.steps_per_team = cuda::ceil_div(rows, teams);
  } else {
    // Each lane adds up about eight vectors.
    while (layout.lanes_per_row_log2 < 5 && (cols >> layout.lanes_per_row_log2) > 8 * cuda::kVecSize<Element>)
      ++layout.lanes_per_row_log2;
    const cuda::RowRuns runs = cuda::cut_rows(layout.steps, resident, waves);
    teams = runs.groups;
    layout.steps_per_team = runs.rows_per_group;
  }
  plan.blocks = teams * shape.blocks;
  plan.workspace_rows = teams;
  plan.argument = Plan::Argument::kSteps;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::portable
