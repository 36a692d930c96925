// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/sm90/bwd.cuh"

namespace plab::ops::attention::sm90 {

void launch_bwd_d128(const BwdParams& params, cudaStream_t stream) {
  launch_bwd_element<128>(params, stream);
}

}  // namespace plab::ops::attention::sm90
