// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/fwd.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {

void launch_fwd_d256(const FwdParams& params, cudaStream_t stream) {
  launch_fwd_element<256, 128, 64, false>(params, stream);
}

}  // namespace plab::ops::attention::sm90
