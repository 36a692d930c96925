// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/backward_launch.cuh"

namespace plab::ops::layer_norm_gelu {
template int64_t launch_backward_of<__half>(const BackwardParams& params, bool launch, cudaStream_t stream);
}  // namespace plab::ops::layer_norm_gelu
