// SPDX-License-Identifier: Apache-2.0
// Approximate arithmetic of the special function unit: 16 results per clock and SM, against 128
// multiply-adds. PTX ISA, "Floating Point Instructions". The .ftz forms skip the rescaling of subnormals,
// which costs three instructions.
#pragma once

#include <cstdint>

namespace plab::cuda::ptx {

/// 2^x, relative error below 2^-22. PTX ISA 9.7.3.21 "ex2".
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// log2(x), absolute error below 2^-22 near 1, relative elsewhere. PTX ISA 9.7.3.20 "lg2".
__device__ __forceinline__ float lg2_approx_ftz(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// 1/x, at most 1 ulp. PTX ISA 9.7.3.13 "rcp.approx.ftz".
__device__ __forceinline__ float rcp_approx_ftz(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

/// tanh x, relative error below 2^-11. PTX ISA "tanh", sm_75 and newer.
__device__ __forceinline__ float tanh_approx(float x) {
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace plab::cuda::ptx
