// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm80/fwd_kernel.cuh"
#include "ops/attention/sm80/fwd_launch.cuh"
#include "ops/attention/sm80/fwd_pairs_kernel.cuh"
#include "ops/attention/sm80/launch.h"

namespace plab::ops::attention::sm80 {
namespace {

template <class Element>
FwdPlan plan_d256(const FwdParams& params) {
  using Pairs = FwdPairsConfig<Element, 256, 64, 64, 2>;
  if (Pairs::kSmemBytes <= cuda::max_shared_bytes())
    return plan_fwd_kernel<Pairs, attention_fwd_pairs_sm80_kernel<Pairs>>(params.problem);
  using Single = FwdConfig<Element, 256, 64, 64, 2, false>;  // sm_86 and sm_89
  return plan_fwd_kernel<Single, attention_fwd_sm80_kernel<Single>>(params.problem);
}

}  // namespace

FwdPlan plan_fwd_d256(const FwdParams& params) {
  return params.problem.element == ElementType::kBFloat16 ? plan_d256<__nv_bfloat16>(params)
                                                          : plan_d256<__half>(params);
}

}  // namespace plab::ops::attention::sm80
