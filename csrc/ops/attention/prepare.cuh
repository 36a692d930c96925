// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include "ops/attention/attention.h"

// Small kernels that both CUDA paths run around the large ones.
namespace plab::ops::attention {

// Fills lse_log2 and delta, and dsink where it is wanted.
void launch_bwd_prepare(const BwdParams& params, cudaStream_t stream);

// Rows from *end on belong to no sequence: O and the gradients become 0 there, LSE -inf.
void launch_clear_tail(const View& view, const int32_t* end, int64_t rows, int heads, int dim,
                       cudaStream_t stream);
void launch_clear_lse_tail(float* lse, RowLayout layout, const int32_t* end, int64_t rows, int heads,
                           cudaStream_t stream);

}  // namespace plab::ops::attention
