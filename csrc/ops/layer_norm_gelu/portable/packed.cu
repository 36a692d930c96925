// SPDX-License-Identifier: Apache-2.0
// Short rows, and others that do not divide evenly among threads, without a residual.
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

/// function.operator()<Element, kForm, kSplit>(). Each kernel takes time to compile: rows of whole vectors have kernels
/// of their own only where most of them are, and the others do them too; and tanh rows of fp32 are not packed.
template <class Function>
Plan dispatch(ElementType element, GeluForm form, int64_t cols, Function&& function) {
  return dispatch_device(element, [&]<class Element>(Tag<Element>) -> Plan {
    if constexpr (sizeof(Element) == 2) {
      if (form == GeluForm::kTanh) return function.template operator()<Element, GeluForm::kTanh, true>();
      if (cols % cuda::kVecSize<Element> == 0)
        return function.template operator()<Element, GeluForm::kErf, false>();
    }
    if (form == GeluForm::kTanh) return {};
    return function.template operator()<Element, GeluForm::kErf, true>();
  });
}

}  // namespace

Plan plan_forward_packed(const ForwardParams& params) {
  return dispatch(params.element, params.form, params.cols,
                  [&]<class Element, GeluForm kForm, bool kSplit>() {
                    using Config = PackedForwardConfig<Element, kSplit, kForm>;
                    return plan_packed<Config, packed_forward_kernel<Config>>(params.rows, params.cols);
                  });
}

Plan plan_backward_packed(const BackwardParams& params) {
  return dispatch(params.element, params.form, params.cols,
                  [&]<class Element, GeluForm kForm, bool kSplit>() {
                    using Config = PackedBackwardConfig<Element, kSplit, kForm>;
                    return plan_packed<Config, packed_backward_kernel<Config>>(params.rows, params.cols);
                  });
}

}  // namespace plab::ops::layer_norm_gelu::portable
