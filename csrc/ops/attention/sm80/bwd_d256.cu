// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm80/bwd_launch.cuh"
#include "ops/attention/sm80/launch.h"

namespace plab::ops::attention::sm80 {
namespace {

template <class Element>
BwdPlan plan(const BwdParams& params) {
  BwdPlan plan = plan_one_pass<BwdConfig<Element, 256, 64, 64, 2, 4, 1, 1, false>>(params);
  if (plan.workspace.dq_accum_floats > 0) return plan;
  // dK and dV together would take 256 accumulators per thread. So there are two launches, and both compute S.
  plan.add(kv_launch<BwdKvConfig<Element, 256, 32, Gradient::kValue, 2>>(params));
  plan.add(kv_launch<BwdKvConfig<Element, 256, 32, Gradient::kKey, 2>>(params));
  plan.add(q_launch<BwdQConfig<Element, 256, 32, 2>>(params));
  return plan;
}

}  // namespace

BwdPlan plan_bwd_d256(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(params)
                                                          : plan<__half>(params);
}

}  // namespace plab::ops::attention::sm80
