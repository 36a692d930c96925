// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/bwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, bool kSoftcap>
using Config = BwdConfig<Element, 64, kSoftcap ? 64 : 128, kSoftcap>;

template <class Element>
BwdPlan plan(const BwdParams& params) {
  return params.problem.softcap > 0 ? plan_bwd_config<Config<Element, true>>(params)
                                    : plan_bwd_config<Config<Element, false>>(params);
}

}  // namespace

BwdPlan plan_bwd_d64(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16>(params)
                                                          : plan<__half>(params);
}

}  // namespace plab::ops::attention::sm90
