// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd_launch.cuh"

// The forward whose keys are in a cache. Head dims between these three are padded to the next one.
namespace plab::ops::attention::sm90 {

FwdPlan plan_fwd_cached(const Problem& p) {
  if (p.widest() <= 64) return plan_fwd_element<64, 192, 128, false, 1, 2, 64, true>(p);
  if (p.widest() <= 128) return plan_fwd_element<128, 128, 128, true, 1, 2, 128, true>(p);
  return plan_fwd_element<256, 128, 64, false, 1, 2, 256, true>(p);
}

}  // namespace plab::ops::attention::sm90
