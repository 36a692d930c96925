// SPDX-License-Identifier: Apache-2.0
// What the blocks of a cluster share (sm_90): rows longer than a block holds, and the sums over a few rows.
// All return false, or 0 blocks, where that cannot be: another GPU, a number of columns that the blocks
// cannot share evenly.
#pragma once

#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

/// Pointers, row strides and the number of columns are multiples of 16 bytes.
bool launch_forward_wide(const ForwardParams& params, cudaStream_t stream);

/// The number of clusters, each of which has its row of partial sums. Without `launch` only that is found
/// out.
int64_t launch_backward_wide(const BackwardParams& params, bool launch, cudaStream_t stream);

/// The whole backward of a few rows, which leaves no partial sums. Without `launch` only whether it would is
/// found out.
bool launch_backward_few(const BackwardParams& params, bool launch, cudaStream_t stream);

}  // namespace plab::ops::layer_norm_gelu
