// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm80/bwd_launch.cuh"
#include "ops/attention/sm80/launch.h"

namespace plab::ops::attention::sm80 {
namespace {

template <class Element>
BwdPlan plan(const BwdParams& params) {
  BwdPlan plan = plan_one_pass<BwdConfig<Element, 64, 64, 128, 4, 1, 2, 2, true>>(params);
  if (plan.workspace.dq_accum_floats > 0) return plan;
  plan.add(kv_launch<BwdKvConfig<Element, 64, 64, Gradient::kKeyAndValue, 3>>(params));
  plan.add(q_launch<BwdQConfig<Element, 64, 64, 3>>(params));
  return plan;
}

}  // namespace

BwdPlan plan_bwd_d64(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(params)
                                                          : plan<__half>(params);
}

}  // namespace plab::ops::attention::sm80
