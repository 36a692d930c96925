// SPDX-License-Identifier: Apache-2.0
// The kernels for rows that fit a block are most of what nvcc compiles: those of each element type are a
// translation unit of their own (forward_*.cu, backward_*.cu), compiled side by side.
#pragma once

#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

template <class Element>
void launch_forward_of(const ForwardParams& params, cudaStream_t stream);

/// Rows of partial sums that the launch fills, or 0; without `launch` only their number is found out.
template <class Element>
int64_t launch_backward_of(const BackwardParams& params, bool launch, cudaStream_t stream);

}  // namespace plab::ops::layer_norm_gelu
