// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "ops/attention/attention.h"

// Small kernels that both CUDA paths run around the large ones.
namespace plab::ops::attention {

// Fills lse_log2 and delta, and dsink where it is wanted.
void launch_bwd_prepare(const BwdParams& params, cudaStream_t stream);

// Rows from *end on belong to no sequence: gradients become 0 there.
void launch_clear_tail(const View& view, const int32_t* end, int64_t rows, int heads, int dim,
                       cudaStream_t stream);

// Before a forward with cu_seqlens: where a row belongs to no sequence O becomes 0 and LSE -inf; the counter
// of tiles becomes 0.
void launch_fwd_prepare(const FwdParams& params, cudaStream_t stream);

}  // namespace plab::ops::attention
