// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/fwd_sm80.cuh"

namespace plab::ops::attention {

void launch_fwd_sm80_d256(const FwdParams& params, cudaStream_t stream) {
  launch_fwd_sm80_element<256, 64, 64, 2, false>(params, stream);
}

}  // namespace plab::ops::attention
