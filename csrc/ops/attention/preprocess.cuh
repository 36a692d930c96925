// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// Small kernels that both CUDA paths run before the large ones.
namespace plab::ops::attention {

// lse_log2, delta and, where it is wanted, dsink.
BwdPlan plan_row_statistics(const BwdParams& params);

// With cu_seqlens, the rows behind the last sequence: O and gradients become 0 there, LSE -inf; and the
// forward's tile counter becomes 0. Without, nothing.
FwdPlan plan_tails(const FwdParams& params);
BwdPlan plan_tails(const BwdParams& params);

}  // namespace plab::ops::attention
