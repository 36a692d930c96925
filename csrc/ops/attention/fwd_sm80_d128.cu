// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/fwd_sm80.cuh"

namespace plab::ops::attention {

void launch_fwd_sm80_d128(const FwdParams& params, cudaStream_t stream) {
  launch_fwd_sm80_element<128, 128, 64, 2, false>(params, stream);
}

}  // namespace plab::ops::attention
