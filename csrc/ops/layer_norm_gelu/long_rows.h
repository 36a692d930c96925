// SPDX-License-Identifier: Apache-2.0
// Rows too long for registers: each pass reads the row again, mostly from L2. Any d; correct before fast.
#pragma once

#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

template <class Element, GeluForm kForm>
void launch_forward_long(const ForwardParams& params, cudaStream_t stream);

/// Blocks of both launches; in the backward each adds up its own row of `partial`.
int64_t long_blocks(int64_t rows);

template <class Element, GeluForm kForm>
void launch_backward_long(const BackwardParams& params, cudaStream_t stream);

}  // namespace plab::ops::layer_norm_gelu
