// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// Small kernels that both CUDA paths run before the large ones.
namespace plab::ops::attention {

// lse_log2, delta and, if requested, dsink.
BwdPlan plan_row_statistics(const BwdParams& params);

// With cu_seqlens: sets O and gradients of the rows behind the last sequence to 0 and their LSE to -inf, and
// sets the forward's tile counter to 0. With a cache or a block mask: the counter, and appends the call's keys. Else
// nothing. The forward may start while this runs (programmatic dependent launch).
FwdPlan plan_tails(const FwdParams& params);
BwdPlan plan_tails(const BwdParams& params);

}  // namespace plab::ops::attention
