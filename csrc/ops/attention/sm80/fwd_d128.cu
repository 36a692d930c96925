// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm80/fwd_kernel.cuh"
#include "ops/attention/sm80/fwd_launch.cuh"
#include "ops/attention/sm80/launch.h"

namespace plab::ops::attention::sm80 {
namespace {

template <class Element>
FwdPlan plan_d128(const FwdParams& params) {
  using Config = FwdConfig<Element, 128, 128, 64, 2, false>;
  return plan_fwd_kernel<Config, attention_fwd_sm80_kernel<Config>>(params.problem);
}

}  // namespace

FwdPlan plan_fwd_d128(const FwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan_d128<__nv_bfloat16>(params)
                                                          : plan_d128<__half>(params);
}

}  // namespace plab::ops::attention::sm80
