// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/launch.h"
#include "ops/attention/sm90/wide/launch.cuh"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, bool kSoftcap>
BwdPlan plan(const Problem& p) {
  using Kv = BwdKvConfig<Element, 256, 256, 64, 2, kSoftcap>;
  return plan_bwd_wide<Kv, BwdQConfig<Element, 256, 256, 64, kSoftcap>>(p);
}

template <class Element>
BwdPlan plan(const Problem& p) {
  return p.softcap > 0 ? plan<Element, true>(p) : plan<Element, false>(p);
}

}  // namespace

BwdPlan plan_bwd_d256(const BwdParams& params) {
  const Problem& p = params.problem;
  return p.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(p) : plan<__half>(p);
}

}  // namespace plab::ops::attention::sm90
