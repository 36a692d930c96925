// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "ops/attention/attention.h"

// The path for compute capability 9.0: wgmma, TMA, warp specialization, persistent kernels. Compiled for
// sm_90a alone.
namespace plab::ops::attention::sm90 {

// No plan where the problem must take the portable path: strides that TMA does not support, and backward passes
// whose scale is not positive.
std::optional<FwdPlan> plan_fwd(const FwdParams& params);
std::optional<BwdPlan> plan_bwd(const BwdParams& params);

constexpr int kDecodeRows = 16;  // queries of all query heads of a key head: one fragment of mma

// Few queries, as in decoding: keys are shared out among the blocks of a cluster (decode/).
bool is_decode(const Problem& p);
FwdPlan plan_decode(const Problem& p);

// The keys of params.cache: sequences of up to kDecodeRows rows are decoded, the others take the kernels below.
FwdPlan plan_fwd_with_cache(const FwdParams& params);
// Sequences of at most most_rows rows; without cu_seqlens_q all, and new keys are appended too.
FwdPlan plan_decode_with_cache(const FwdParams& params, int most_rows);
// With cu_seqlens_q: sequences of more than kDecodeRows rows; without: all. Also where there is a block mask.
FwdPlan plan_fwd_cached(const Problem& p);

// One translation unit per direction and head_dim (fwd_d*.cu, bwd_d*.cu), so that compilers share the work.
FwdPlan plan_fwd_d64(const FwdParams& params);
FwdPlan plan_fwd_d96(const FwdParams& params);
FwdPlan plan_fwd_d128(const FwdParams& params);
FwdPlan plan_fwd_d192(const FwdParams& params);
FwdPlan plan_fwd_d256(const FwdParams& params);
BwdPlan plan_bwd_d64(const BwdParams& params);
BwdPlan plan_bwd_d128(const BwdParams& params);
BwdPlan plan_bwd_d192(const BwdParams& params);
BwdPlan plan_bwd_d256(const BwdParams& params);

}  // namespace plab::ops::attention::sm90
