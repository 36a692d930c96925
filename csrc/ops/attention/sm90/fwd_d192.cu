// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {

// Two buffers for Q fit with key tiles of 80. With few of those, tiles of 64 and turns are faster.
FwdPlan plan_fwd_d192(const FwdParams& params) {
  const Problem& p = params.problem;
  if (p.head_dim_v <= 128) return plan_fwd_element<192, 128, 128, false, 1, 2, 128>(p);
  if (keys_per_sequence(p) <= 1024) return plan_fwd_element<192, 128, 64, true>(p);
  return plan_fwd_element<192, 128, 80, false>(p);
}

}  // namespace plab::ops::attention::sm90
