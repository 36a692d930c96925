// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// The Hopper path: wgmma, TMA, warp specialisation. Compiled for sm_90a alone, so dispatch.cu sees only this.
namespace plab::ops::attention::sm90 {

// What the path takes; everything else runs on the portable path.
bool takes(const FwdParams& params);
bool takes(const BwdParams& params);

// Whether the forward takes its tiles from a counter, FwdParams::next_tile.
bool counts_tiles(const Problem& problem);

// Floats of BwdParams::dq_sum; 0 for problems that need none.
int64_t dq_sum_floats(const BwdParams& params);

// Whether the backward makes its rows' statistics itself, so that lse_log2 and delta need not be filled.
bool makes_statistics(const BwdParams& params);

void launch_fwd(const FwdParams& params, cudaStream_t stream);
void launch_bwd(const BwdParams& params, cudaStream_t stream);

}  // namespace plab::ops::attention::sm90
