// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/bwd_query.cuh"
#include "ops/attention/sm90/bwd_wide.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, bool kSoftcap>
void launch(const BwdParams& params, cudaStream_t stream) {
  launch_bwd_wide_config<BwdWideConfig<Element, kSoftcap>>(params, stream);
  launch_bwd_query_config<BwdQueryConfig<Element, 256, 64, kSoftcap>>(params, stream);
}

template <class Element>
void launch(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.softcap > 0)
    launch<Element, true>(params, stream);
  else
    launch<Element, false>(params, stream);
}

}  // namespace

void launch_bwd_d256(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch<__nv_bfloat16>(params, stream);
  else
    launch<__half>(params, stream);
}

}  // namespace plab::ops::attention::sm90
