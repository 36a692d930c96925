// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {

// O of three warpgroups fits their registers up to 96 columns, as at d64; with few keys two that take turns are
// faster. Fewer products, with the same exponentials: at 80 columns a kernel of its own saves another eighth.
FwdPlan plan_fwd_d96(const FwdParams& params) {
  const Problem& p = params.problem;
  if (keys_per_sequence(p) <= 1024) return plan_fwd_element<96, 128, 128, true>(p);
  if (p.widest() <= 80) return plan_fwd_element<80, 192, 112, false>(p);
  return plan_fwd_element<96, 192, 96, false>(p);
}

}  // namespace plab::ops::attention::sm90
