// SPDX-License-Identifier: Apache-2.0
// The backward with the gradient of a residual's sum: its own file, so that both compile side by side.
#include "ops/layer_norm_gelu/backward_launch.cuh"

namespace plab::ops::layer_norm_gelu {

int64_t launch_backward_residual(const BackwardParams& params, bool launch, cudaStream_t stream) {
  int64_t partial_rows = 0;
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    partial_rows = launch_backward_typed<Element, kForm, true>(params, launch, stream);
  });
  return partial_rows;
}

}  // namespace plab::ops::layer_norm_gelu
