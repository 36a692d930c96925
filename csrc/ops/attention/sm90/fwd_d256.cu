// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {

FwdPlan plan_fwd_d256(const FwdParams& params) {
  return plan_fwd_element<256, 128, 64, false>(params.problem);
}

}  // namespace plab::ops::attention::sm90
