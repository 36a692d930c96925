// SPDX-License-Identifier: Apache-2.0
// The interface of this folder: plans for kernels whose blocks share rows, or sums, as a cluster. A plan has no
// kernel where that is impossible: another GPU, unaligned rows, a number of columns that the blocks cannot share
// evenly.
#pragma once

#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu::sm90 {

/// Rows longer than a block holds.
template <class Element>
Plan plan_forward(const ForwardParams& params);
/// A few rows, and those for which a cluster is faster than a block.
template <class Element>
Plan plan_backward(const BackwardParams& params);
/// Rows that do not fit a block, or whose ring does not.
template <class Element>
Plan plan_backward_long(const BackwardParams& params);

/// Rows that lie without gaps, in matrices that start at 16 bytes (portable/shifted.cuh). Erf form and no residual.
template <class Element>
Plan plan_forward_shifted(const ForwardParams& params);
template <class Element>
Plan plan_backward_shifted(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::sm90
