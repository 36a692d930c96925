// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu/launch.h"

namespace plab::ops::attention::cpu {

void fwd(const FwdParams& params) {
  dispatch_host(params.problem.element, [&](auto tag) { fwd_element<typename decltype(tag)::type>(params); });
}

void bwd(const BwdParams& params) {
  dispatch_host(params.problem.element, [&](auto tag) { bwd_element<typename decltype(tag)::type>(params); });
}

}  // namespace plab::ops::attention::cpu
