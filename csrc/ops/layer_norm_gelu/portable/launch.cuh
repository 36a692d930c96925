// SPDX-License-Identifier: Apache-2.0
// The interface of this folder: plans for kernels that run on every GPU from sm_80 on. Also how a plan is made:
// from run-time values (element type, GELU form, number of columns) to compile-time types, and from these to a
// grid.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/pair_sum.cuh"
#include "ops/device_types.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/load.cuh"
#include "ops/layer_norm_gelu/portable/split.h"

namespace plab::ops::layer_norm_gelu::portable {

/// Without a kernel where a row does not fit a block (forward.cu, backward.cu).
template <class Element>
Plan plan_forward(const ForwardParams& params);
template <class Element>
Plan plan_backward(const BackwardParams& params);
/// Rows that share steps (packed.cuh), without a kernel where a step does not fit a block, and for tanh rows of fp32.
Plan plan_forward_packed(const ForwardParams& params);
Plan plan_backward_packed(const BackwardParams& params);
/// Any row.
template <class Element>
Plan plan_forward_long(const ForwardParams& params);
template <class Element>
Plan plan_backward_long(const BackwardParams& params);

template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;

/// Whether every row of every matrix starts at a multiple of 16 bytes.
inline bool is_aligned(std::initializer_list<const void*> pointers,
                       std::initializer_list<int64_t> row_strides, int element_bytes) {
  uint64_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uint64_t>(pointer);
  for (const int64_t stride : row_strides) bits |= static_cast<uint64_t>(stride * element_bytes);
  return bits % cuda::kVecBytes == 0;
}
template <class Element>
bool is_aligned(const ForwardParams& p) {
  return is_aligned({p.x, p.weight, p.bias, p.y, p.residual, p.sum},
                    {p.x_row_stride, p.residual_row_stride, p.cols}, sizeof(Element));
}
template <class Element>
bool is_aligned(const BackwardParams& p) {
  return is_aligned({p.dy, p.x, p.weight, p.bias, p.dx, p.dsum},
                    {p.dy_row_stride, p.x_row_stride, p.dsum_row_stride, p.cols}, sizeof(Element));
}

/// What packed rows need: no residual, no gaps between them, and every matrix starts at 16 bytes.
template <class Element>
bool is_packable(const ForwardParams& p) {
  return p.residual == nullptr && p.x_row_stride == p.cols && is_aligned({p.x, p.y}, {}, sizeof(Element));
}
template <class Element>
bool is_packable(const BackwardParams& p) {
  return p.dsum == nullptr && p.x_row_stride == p.cols && p.dy_row_stride == p.cols &&
         is_aligned({p.dy, p.x, p.dx}, {}, sizeof(Element));
}

/// function.operator()<kForm>()
template <class Function>
Plan dispatch_form(GeluForm form, Function&& function) {
  if (form == GeluForm::kErf) return function.template operator()<GeluForm::kErf>();
  return function.template operator()<GeluForm::kTanh>();
}
/// function.operator()<kForm, kResidual>(): three kernels instead of four, because compiling them is most of a build.
template <class Function>
Plan dispatch_form(GeluForm form, bool has_residual, Function&& function) {
  using enum Residual;
  if (form == GeluForm::kTanh) return function.template operator()<GeluForm::kTanh, kEither>();
  return has_residual ? function.template operator()<GeluForm::kErf, kYes>()
                      : function.template operator()<GeluForm::kErf, kNo>();
}

/// function(Tag<Tile>, Tag<Group>) for a split whose row fits a block (split.vecs > 0). kChoices as in
/// split_row.
template <class Element, int kFirst, int... kOthers, class Function>
Plan dispatch_tile(const RowSplit& split, Function&& function) {
  const auto with_vecs = [&]<int kVecs, Access kAccess>() -> Plan {
    using Tile = RowTile<Element, kVecs, kAccess>;
    if (split.threads == cuda::kWarpSize) return function(Tag<Tile>{}, Tag<cuda::WarpPairSum>{});
    return function(Tag<Tile>{}, Tag<cuda::BlockPairSum>{});
  };
  // A warp too is a block then, which is as fast for the few rows that come to this, and compiled once less.
  if (split.access == Access::kScalar)
    return function(Tag<RowTile<Element, 1, Access::kScalar>>{}, Tag<cuda::BlockPairSum>{});
  if (split.access == Access::kVector) {
    static_assert(kFirst > 1);  // so one vector a thread means a row of at most 32 vectors, which is a warp's
    if (split.vecs == 1)
      return function(Tag<RowTile<Element, 1, Access::kVector>>{}, Tag<cuda::WarpPairSum>{});
    return with_vecs.template operator()<kFirst, Access::kVector>();
  }
  Plan plan;
  const auto if_exact = [&]<int kVecs>(Constant<kVecs>) {
    if (split.vecs == kVecs) plan = with_vecs.template operator()<kVecs, Access::kExact>();
  };
  if_exact(Constant<kFirst>{});
  (if_exact(Constant<kOthers>{}), ...);
  return plan;
}

/// Whether a block of Config fits on an SM. A residual has a ring of its own in shared memory, if rows have rings.
template <class Config>
bool fits(int threads_per_row, bool has_residual = false) {
  constexpr int kRows = Config::kRowsAtATime;
  constexpr int kStatic = sizeof(typename Config::Group::Storage);
  return Config::shared_bytes(threads_per_row, kRows * threads_per_row, has_residual) + kStatic <=
         cuda::max_shared_bytes();
}

/// What a plan needs to know of a kernel and its configuration.
struct KernelFacts {
  const void* kernel;
  int rows_at_a_time;     // of a block, or cluster
  int cluster;            // blocks; 1: no clusters
  int threads;            // of a block
  int shared_bytes;       // dynamic
  int64_t units_per_gpu;  // blocks or clusters that are resident at once
};

template <class Config, auto kKernel>
KernelFacts kernel_facts(int threads_per_row, bool has_residual = false) {
  constexpr int kRows = Config::kRowsAtATime, kBlocks = Config::Group::kBlocks;
  const int threads = kRows * threads_per_row;
  const int shared_bytes = Config::shared_bytes(threads_per_row, threads, has_residual);
  KernelFacts facts{reinterpret_cast<const void*>(kKernel), kRows, kBlocks, threads, shared_bytes, 0};
  // Also for clusters: lets the kernel have that much shared memory.
  const int blocks = cuda::blocks_per_sm<kKernel>(threads, shared_bytes, has_residual);
  if constexpr (kBlocks == 1) {
    facts.units_per_gpu = int64_t{blocks} * cuda::sm_count();
  } else {
    facts.units_per_gpu = cuda::clusters_on_device<kKernel>(kBlocks, threads, shared_bytes, has_residual);
  }
  return facts;
}

/// `waves`: times as many groups as are resident at once; 0: no more blocks than SMs.
inline Plan plan_grid(const KernelFacts& facts, int64_t rows, int64_t cols, int waves, bool interleaved) {
  int64_t units = facts.units_per_gpu;
  if (waves == 0 && units > cuda::sm_count()) units = cuda::sm_count();
  const int64_t resident = units * facts.rows_at_a_time;
  const cuda::RowRuns runs = cuda::cut_rows(rows, resident, waves == 0 ? 1 : waves);
  Plan plan;
  plan.kernel = facts.kernel;
  plan.blocks = cuda::ceil_div<int64_t>(runs.groups, facts.rows_at_a_time) * facts.cluster;
  plan.threads = facts.threads;
  plan.shared_bytes = facts.shared_bytes;
  plan.cluster = facts.cluster > 1 ? facts.cluster : 0;
  plan.order = RowOrder{runs.rows_per_group, interleaved, resident / 2, 1.0f / static_cast<float>(cols)};
  return plan;
}

/// Up to this number of rows one block does everything, and no second kernel is needed.
constexpr int64_t kRowsOfOneBlock = 1;

/// The plan of the backward. Each block costs 16 d bytes for its sums, so there is one wave, and with few rows only
/// one block per SM. A single block or cluster writes dweight and dbias itself; several write one row of the
/// workspace each.
inline Plan plan_backward_grid(const KernelFacts& facts, bool group_is_warp, const BackwardParams& params,
                               bool interleaved) {
  const int waves = params.rows < 4 * cuda::sm_count() ? 0 : 1;
  Plan plan = plan_grid(facts, params.rows, params.cols, waves, interleaved);
  if (params.rows <= kRowsOfOneBlock && !group_is_warp) {
    plan.blocks = facts.cluster;
    plan.order.rows_per_group = params.rows;
  }
  plan.workspace_rows = plan.blocks == facts.cluster ? 0 : plan.blocks / facts.cluster;
  return plan;
}

/// It has no kernel if shared memory is too small.
template <class Config, auto kKernel>
Plan plan_backward_grid(const BackwardParams& params, int threads_per_row, bool interleaved) {
  const bool has_residual = params.dsum != nullptr;
  if (!fits<Config>(threads_per_row, has_residual)) return {};
  return plan_backward_grid(kernel_facts<Config, kKernel>(threads_per_row, has_residual),
                            Config::Group::kIsWarp, params, interleaved);
}

/// For the kernels of long_rows.cuh.
inline Plan plan_long_grid(const void* kernel, int64_t rows, int threads, int blocks_per_sm) {
  const int64_t resident = static_cast<int64_t>(cuda::sm_count()) * blocks_per_sm;
  Plan plan;
  plan.kernel = kernel;
  plan.blocks = cuda::cut_rows(rows, resident, 1).groups;
  plan.threads = threads;
  return plan;
}

/// Any plan that has a kernel.
template <class Params>
void launch(Plan plan, Params params, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = plan.cluster > 0 ? 1 : 0;
  void* second = plan.argument == Plan::Argument::kPacking       ? static_cast<void*>(&plan.packing)
                 : plan.argument == Plan::Argument::kInverseCols ? &plan.order.inverse_cols
                                                                 : static_cast<void*>(&plan.order);
  void* arguments[] = {&params, second};
  PLAB_CUDA_CHECK(cudaLaunchKernelExC(&config, plan.kernel, arguments));
}

}  // namespace plab::ops::layer_norm_gelu::portable
