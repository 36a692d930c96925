// SPDX-License-Identifier: Apache-2.0
// The forward with a residual: its own file, so that both compile side by side.
#include "ops/layer_norm_gelu/forward_launch.cuh"

namespace plab::ops::layer_norm_gelu {

void launch_forward_residual(const ForwardParams& params, cudaStream_t stream) {
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    launch_forward_typed<Element, kForm, true>(params, stream);
  });
}

}  // namespace plab::ops::layer_norm_gelu
