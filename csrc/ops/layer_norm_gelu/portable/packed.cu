// SPDX-License-Identifier: Apache-2.0
// Short rows, and others up to a few thousand columns that do not divide evenly among threads. Compiled once per
// element type, like forward.cu.
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

/// function.operator()<kSplit>()
template <class Element, class Function>
Plan dispatch_split(int64_t cols, Function&& function) {
  if (cols % cuda::kVecSize<Element> == 0) return function.template operator()<false>();
  return function.template operator()<true>();
}

}  // namespace

template <class Element>
Plan plan_forward_packed(const ForwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    return dispatch_split<Element>(params.cols, [&]<bool kSplit>() {
      const auto with = [&]<bool kResidual>() {
        using Config = PackedForwardConfig<Element, kSplit, kForm, kResidual>;
        return plan_packed<Config, packed_forward_kernel<Config>>(params.rows, params.cols);
      };
      return params.residual != nullptr ? with.template operator()<true>()
                                        : with.template operator()<false>();
    });
  });
}

template <class Element>
Plan plan_backward_packed(const BackwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    return dispatch_split<Element>(params.cols, [&]<bool kSplit>() {
      const auto with = [&]<bool kResidual>() {
        using Config = PackedBackwardConfig<Element, kSplit, kForm, kResidual>;
        return plan_packed<Config, packed_backward_kernel<Config>>(params.rows, params.cols);
      };
      return params.dsum != nullptr ? with.template operator()<true>() : with.template operator()<false>();
    });
  });
}

template Plan plan_forward_packed<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_backward_packed<PLAB_ELEMENT>(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::portable
