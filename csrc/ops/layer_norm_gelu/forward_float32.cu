// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/forward_launch.cuh"

namespace plab::ops::layer_norm_gelu {
template void launch_forward_of<float>(const ForwardParams& params, cudaStream_t stream);
}  // namespace plab::ops::layer_norm_gelu
