// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/bwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, int kHeadDim, bool kSoftcap>
using Config = BwdConfig<Element, kHeadDim, kHeadDim == 64 && !kSoftcap ? 128 : 64, kSoftcap>;

template <class Element, int kHeadDim>
BwdPlan plan(const BwdParams& params) {
  return params.problem.softcap > 0 ? plan_bwd_config<Config<Element, kHeadDim, true>>(params)
                                    : plan_bwd_config<Config<Element, kHeadDim, false>>(params);
}

}  // namespace

BwdPlan plan_bwd_d64(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16, 64>(params)
                                                          : plan<__half, 64>(params);
}

BwdPlan plan_bwd_d128(const BwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan<__nv_bfloat16, 128>(params)
                                                          : plan<__half, 128>(params);
}

}  // namespace plab::ops::attention::sm90
