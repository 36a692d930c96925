// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/bwd.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

template <class Element, bool kSoftcap>
using Config = BwdConfig<Element, 128, 64, kSoftcap>;

template <class Element>
void launch(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.softcap > 0)
    launch_bwd_config<Config<Element, true>>(params, stream);
  else
    launch_bwd_config<Config<Element, false>>(params, stream);
}

}  // namespace

int64_t scratch_bwd_d128(const BwdParams& params) {
  return params.problem.softcap > 0 ? scratch_floats<Config<__half, true>>(params)
                                    : scratch_floats<Config<__half, false>>(params);
}

void launch_bwd_d128(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch<__nv_bfloat16>(params, stream);
  else
    launch<__half>(params, stream);
}

}  // namespace plab::ops::attention::sm90
