// SPDX-License-Identifier: Apache-2.0
// A block's dynamic shared memory. PTX ISA, "State Spaces: .shared".
#pragma once

namespace plab::cuda::ptx {

__device__ __forceinline__ float4* dynamic_shared() {
  extern __shared__ float4 plab_dynamic_shared[];
  return plab_dynamic_shared;
}

}  // namespace plab::cuda::ptx
