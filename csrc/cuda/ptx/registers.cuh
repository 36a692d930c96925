// SPDX-License-Identifier: Apache-2.0
// Instructions that only speak to the register allocator.
#pragma once

#include <cuda_runtime.h>

namespace plab::cuda::ptx {

/// No instruction at all: the compiler must believe that the value changes here. Inside a loop it keeps work
/// on a loop-invariant value, such as unpacking it to twice the registers, from moving out of the loop; on a
/// result it keeps the compiler from computing the result a second time instead of holding it.
__device__ __forceinline__ void opaque(uint4& v) {
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}
__device__ __forceinline__ void opaque(float& v) { asm volatile("" : "+f"(v)); }

}  // namespace plab::cuda::ptx
