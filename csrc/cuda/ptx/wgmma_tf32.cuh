// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/wgmma.cuh"

// wgmma on fp32 in memory, of which the tensor cores read the upper 19 bits (TF32) and cut off the rest:
// whoever writes the operands rounds, as a tensor map of type TFLOAT32 does (to nearest, ties to even). Both
// operands K-major, which is all that exists for this type; a step of depth is 8 elements, 32 bytes as for
// 16-bit ones.
namespace plab::cuda::ptx {

template <int kN>
struct Wgmma<float, kN, false, false> {
  static_assert(kN == 128);
  static __device__ __forceinline__ void ss(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" PLAB_TEXT_N128 "}, %64, %65, p, 1, 1;\n}"
        : PLAB_OUT_N128
        : "l"(a), "l"(b), "r"(add));
  }
};

}  // namespace plab::cuda::ptx
