// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/forward_launch.cuh"

namespace plab::ops::layer_norm_gelu {

void launch_forward(const ForwardParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  if (params.residual != nullptr) return launch_forward_residual(params, stream);
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    launch_forward_typed<Element, kForm, false>(params, stream);
  });
}

}  // namespace plab::ops::layer_norm_gelu
