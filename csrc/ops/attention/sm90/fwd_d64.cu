// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd_launch.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {

// Three warpgroups of one tile get most out of a key tile. Where a query tile sees few of those, its
// beginning and its end are what counts: two units hide each other's, and tiles of 128 x 64 waste less of a
// causal diagonal.
FwdPlan plan_fwd_d64(const FwdParams& params) {
  const Problem& p = params.problem;
  if (keys_per_sequence(p) <= (p.window_right >= 0 ? 2048 : 512))
    return plan_fwd_element<64, 128, 64, false, 2, 4>(p);
  return plan_fwd_element<64, 192, 128, false>(p);
}

}  // namespace plab::ops::attention::sm90
