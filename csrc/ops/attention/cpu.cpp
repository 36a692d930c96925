// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu.h"

namespace plab::ops::attention {

void attention_fwd_cpu(const FwdParams& params) {
  dispatch_host(params.problem.element, [&](auto tag) { fwd_cpu<typename decltype(tag)::type>(params); });
}

void attention_bwd_cpu(const BwdParams& params) {
  dispatch_host(params.problem.element, [&](auto tag) { bwd_cpu<typename decltype(tag)::type>(params); });
}

}  // namespace plab::ops::attention
