// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// One translation unit per direction and head dim (fwd_d*.cu, bwd_d*.cu), so that compilers can share the
// work.
namespace plab::ops::attention::sm90 {

// Keys of a sequence; with cu_seqlens their mean.
inline int64_t keys_of(const Problem& p) { return p.k_len / (p.cu_seqlens_k != nullptr ? p.batch : 1); }

void launch_fwd_d64(const FwdParams& params, cudaStream_t stream);
void launch_fwd_d128(const FwdParams& params, cudaStream_t stream);
void launch_fwd_d256(const FwdParams& params, cudaStream_t stream);

void launch_bwd_d64(const BwdParams& params, cudaStream_t stream);
void launch_bwd_d128(const BwdParams& params, cudaStream_t stream);
void launch_bwd_d256(const BwdParams& params, cudaStream_t stream);

// Floats of BwdParams::dq_sum.
int64_t scratch_bwd_d64(const BwdParams& params);
int64_t scratch_bwd_d128(const BwdParams& params);

}  // namespace plab::ops::attention::sm90
