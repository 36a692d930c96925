// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// The portable path: mma.sync, ldmatrix, cp.async, for compute capability 8.0 and newer.
namespace plab::ops::attention::sm80 {

FwdPlan plan_fwd(const FwdParams& params);
BwdPlan plan_bwd(const BwdParams& params);

// One translation unit per direction and head_dim (fwd_d*.cu, bwd_d*.cu), so that compilers share the work.
FwdPlan plan_fwd_d64(const FwdParams& params);
FwdPlan plan_fwd_d128(const FwdParams& params);
FwdPlan plan_fwd_d256(const FwdParams& params);
BwdPlan plan_bwd_d64(const BwdParams& params);
BwdPlan plan_bwd_d128(const BwdParams& params);
BwdPlan plan_bwd_d256(const BwdParams& params);

}  // namespace plab::ops::attention::sm80
