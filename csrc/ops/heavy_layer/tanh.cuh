// SPDX-License-Identifier: Apache-2.0
// tanh with the accuracy that an element type can hold.
#pragma once

#include "cuda/ptx/approx.cuh"

namespace plab::ops {

/// The special function unit's tanh is within 2^-11 relative, which is half an ulp of fp16 and an eighth of
/// bf16's. fp32 takes tanhf, twenty instructions more.
template <class Element>
__device__ __forceinline__ float fast_tanh(float x) {
  if constexpr (sizeof(Element) == 2) return cuda::ptx::tanh_approx(x);
  return tanhf(x);
}

}  // namespace plab::ops
