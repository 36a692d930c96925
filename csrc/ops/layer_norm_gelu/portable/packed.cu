// SPDX-License-Identifier: Apache-2.0
// Short rows, and others up to 1024 columns that do not divide evenly among threads. Compiled once per element type,
// like forward.cu.
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

/// function.operator()<kSplit>() if these kernels have been tried on a GPU.
template <class Element, class Function>
Plan dispatch(GeluForm form, bool has_residual, int64_t cols, Function&& function) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if (form != GeluForm::kErf || has_residual) return {};
    if (cols % cuda::kVecSize<Element> == 0) return function.template operator()<false>();
    return function.template operator()<true>();
  }
  return {};
}

}  // namespace

template <class Element>
Plan plan_forward_packed(const ForwardParams& params) {
  return dispatch<Element>(params.form, params.residual != nullptr, params.cols, [&]<bool kSplit>() {
    using Config = PackedForwardConfig<Element, kSplit, GeluForm::kErf>;
    return plan_packed<Config, packed_forward_kernel<Config>>(params.rows, params.cols);
  });
}

template <class Element>
Plan plan_backward_packed(const BackwardParams& params) {
  return dispatch<Element>(params.form, params.dsum != nullptr, params.cols, [&]<bool kSplit>() {
    using Config = PackedBackwardConfig<Element, kSplit, GeluForm::kErf>;
    return plan_packed<Config, packed_backward_kernel<Config>>(params.rows, params.cols);
  });
}

template Plan plan_forward_packed<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_backward_packed<PLAB_ELEMENT>(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::portable
