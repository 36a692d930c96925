// SPDX-License-Identifier: Apache-2.0
// Short rows, and others up to 1024 columns that do not divide evenly among threads; of bf16, in erf form.
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

using Element = __nv_bfloat16;

/// function.operator()<kSplit>() if these kernels have been tried on a GPU.
template <class Function>
Plan dispatch(GeluForm form, bool has_residual, int64_t cols, Function&& function) {
  if (form != GeluForm::kErf || has_residual) return {};
  if (cols % cuda::kVecSize<Element> == 0) return function.template operator()<false>();
  return function.template operator()<true>();
}

}  // namespace

Plan plan_forward_packed(const ForwardParams& params) {
  return dispatch(params.form, params.residual != nullptr, params.cols, [&]<bool kSplit>() {
    using Config = PackedForwardConfig<Element, kSplit, GeluForm::kErf>;
    return plan_packed<Config, packed_forward_kernel<Config>>(params.rows, params.cols);
  });
}

Plan plan_backward_packed(const BackwardParams& params) {
  return dispatch(params.form, params.dsum != nullptr, params.cols, [&]<bool kSplit>() {
    using Config = PackedBackwardConfig<Element, kSplit, GeluForm::kErf>;
    return plan_packed<Config, packed_backward_kernel<Config>>(params.rows, params.cols);
  });
}

}  // namespace plab::ops::layer_norm_gelu::portable
