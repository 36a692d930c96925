// SPDX-License-Identifier: Apache-2.0
// What this folder gives: plans for kernels whose blocks share rows, or sums, as a cluster. Without a kernel
// where that cannot be: another GPU, unaligned rows, a number of columns that the blocks cannot share evenly.
#pragma once

#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu::sm90 {

/// Rows longer than a block holds.
Plan plan_forward(const ForwardParams& params);
/// A few rows, and those for which a cluster is faster than a block, or the only way.
Plan plan_backward(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::sm90
