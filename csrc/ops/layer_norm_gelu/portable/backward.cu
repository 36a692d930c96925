// SPDX-License-Identifier: Apache-2.0
// Which configuration of the backward kernel is used for which rows, as measured by
// benchmarks/layer_norm_gelu/layer_norm_gelu_sweep.py. Compiled once per element type, like forward.cu.
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/long_rows.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

template <class Element, GeluForm kForm, Residual kResidual>
Plan plan_backward_typed(const BackwardParams& params) {
  const RowSplit split = split_backward_row<Element>(params.rows, params.cols, is_aligned<Element>(params));
  if (split.vecs == 0) return {};
  constexpr bool k16Bit = sizeof(Element) == 2;
  const auto with_tile = [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) -> Plan {
    const auto with = [&]<int kResident, int kStages, bool kOverlap, bool kInterleaved,
                          Residual kOfConfig = kResidual>() {
      using Config = BackwardConfig<Tile, Group, kResident, kWarpsPerBlock, Weights::kShared, kStages,
                                    kOverlap, kForm, kOfConfig>;
      return plan_backward_grid<Config, backward_kernel<Config>>(params, split.threads, kInterleaved);
    };
    if constexpr (Tile::kAccess != Access::kExact && kResidual == Residual::kYes) {
      return {};  // left to the kernel for long rows
    } else if constexpr (Tile::kAccess != Access::kExact) {
      if (params.dsum != nullptr) return {};
      constexpr int kStages = k16Bit ? 3 : 2;
      return with.template operator()<512, kStages, false, false, Residual::kNo>();
    } else if constexpr (Tile::kElements > 16) {
      return with.template operator()<512, 3, false, true>();
    } else if constexpr (k16Bit && Group::kIsWarp) {
      return with.template operator()<512, 3, true, true>();
    } else if constexpr (k16Bit) {
      return with.template operator()<640, 3, false, false>();
    } else {
      Plan plan;
      if constexpr (!Group::kIsWarp) {
        if (split.threads > 256 && split.threads < 512) plan = with.template operator()<512, 3, true, true>();
      }
      if (plan.kernel == nullptr) plan = with.template operator()<640, 2, false, true>();
      return plan;
    }
  };
  if constexpr (k16Bit) {
    return dispatch_tile<Element, 2, 3, 1>(split, with_tile);
  } else {
    return dispatch_tile<Element, 4, 6, 2, 1>(split, with_tile);
  }
}

}  // namespace

template <class Element>
Plan plan_backward(const BackwardParams& params) {
  return dispatch_form(params.form, params.dsum != nullptr, [&]<GeluForm kForm, Residual kResidual>() {
    return plan_backward_typed<Element, kForm, kResidual>(params);
  });
}

/// Two kernels: dX by rows, and the sums by columns.
template <class Element>
Plan plan_backward_long(const BackwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    constexpr int kBlocksPerSm = 16;  // in a few waves, of the second kernel
    Plan plan = plan_long_grid(reinterpret_cast<const void*>(backward_long_kernel<Element, kForm>),
                               params.rows, kLongThreads, kLongBlocksPerSm);
    const int64_t columns = cuda::ceil_div<int64_t>(params.cols, kLongSumsThreads);
    const int64_t runs = cuda::ceil_div<int64_t>(int64_t{kBlocksPerSm} * cuda::sm_count(), columns);
    plan.workspace_rows = cuda::smaller(runs, params.rows);
    plan.sums_kernel = reinterpret_cast<const void*>(backward_long_sums_kernel<Element, kForm>);
    plan.sums_blocks = columns * plan.workspace_rows;
    plan.sums_threads = kLongSumsThreads;
    return plan;
  });
}

template Plan plan_backward<PLAB_ELEMENT>(const BackwardParams& params);
template Plan plan_backward_long<PLAB_ELEMENT>(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::portable
