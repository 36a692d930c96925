// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm80/launch.h"

#include "ops/attention/preprocess.cuh"

namespace plab::ops::attention::sm80 {

FwdPlan plan_fwd(const FwdParams& params) {
  if (params.problem.widest() <= 64) return plan_fwd_d64(params);
  return params.problem.widest() <= 128 ? plan_fwd_d128(params) : plan_fwd_d256(params);
}

BwdPlan plan_bwd(const BwdParams& params) {
  BwdPlan plan = plan_row_statistics(params);
  const int dim = params.problem.widest();
  plan.append(dim <= 64 ? plan_bwd_d64(params) : dim <= 128 ? plan_bwd_d128(params) : plan_bwd_d256(params));
  return plan;
}

}  // namespace plab::ops::attention::sm80
