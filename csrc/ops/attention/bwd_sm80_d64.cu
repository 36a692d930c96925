// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/bwd_sm80.cuh"
#include "ops/attention/bwd_sm80_sum.cuh"

namespace plab::ops::attention {
namespace {

template <class Element>
void launch(const BwdParams& params, cudaStream_t stream) {
  using Sum = BwdSumD64Sm80<Element>;
  if (params.dq_sum != nullptr && sum_floats_sm80<Sum>(params.problem) > 0)
    return launch_bwd_sum_sm80<Sum>(params, stream);
  launch_bwd_key_sm80<BwdKeySm80<Element, 64, 64, Gradient::kKeyAndValue, 3>>(params, stream);
  launch_bwd_query_sm80<BwdQuerySm80<Element, 64, 64, 3>>(params, stream);
}

}  // namespace

void launch_bwd_sm80_d64(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch<__nv_bfloat16>(params, stream);
  else
    launch<__half>(params, stream);
}

}  // namespace plab::ops::attention
