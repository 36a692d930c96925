// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "ops/attention/sm90/launch.h"
#include "ops/attention/sm90/wide/launch.cuh"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, int kHeadDimV>
BwdPlan plan(const Problem& p) {
  using Q = BwdQConfig<Element, 192, kHeadDimV, 64, false>;
  static const char* const choice = std::getenv("PLAB_KV");  // removed after the measurement
  if (choice != nullptr) {
    const char c = choice[(kHeadDimV == 128 ? 0 : 2) + (p.q_len / (p.cu_seqlens_q ? p.batch : 1) > 1024)];
    if (c == '0') return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 64, 2, false>, Q>(p);
    if (c == '1') return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 96, 2, false>, Q>(p);
    if (c == '2') return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 64, 3, false, true>, Q>(p);
    if constexpr (kHeadDimV == 128)
      if (c == '3') return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 80, 3, false, true>, Q>(p);
  }
  // Taller query tiles read K and V less often from shared memory; with few of them their ends count.
  if (p.q_len / (p.cu_seqlens_q ? p.batch : 1) > 1024)
    return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 96, 2, false>, Q>(p);
  return plan_bwd_wide<BwdKvConfig<Element, 192, kHeadDimV, 64, 2, false>, Q>(p);
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
