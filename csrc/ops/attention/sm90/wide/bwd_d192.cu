// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/launch.h"
#include "ops/attention/sm90/wide/launch.cuh"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, int kHeadDimV>
BwdPlan plan(const Problem& p) {
  return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 64, 3, false, true>,
                       BwdQConfig<Element, 192, kHeadDimV, 64, false>>(p);
}

template <class Element>
BwdPlan plan(const Problem& p) {
  if (p.softcap > 0) {
    using Kv = BwdKvConfig<Element, 192, 192, 64, 2, true>;
    return plan_bwd_wide<Kv, BwdQConfig<Element, 192, 192, 64, true>>(p);
  }
  return p.head_dim_v <= 128 ? plan<Element, 128>(p) : plan<Element, 192>(p);
}

}  // namespace

BwdPlan plan_bwd_d192(const BwdParams& params) {
  const Problem& p = params.problem;
  return p.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(p) : plan<__half>(p);
}

}  // namespace plab::ops::attention::sm90
