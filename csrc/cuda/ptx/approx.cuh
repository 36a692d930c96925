// SPDX-License-Identifier: Apache-2.0
// Approximate arithmetic of the special function unit: 16 results a clock and multiprocessor, beside 128
// multiply-adds. PTX ISA, "Floating Point Instructions". The .ftz forms skip the rescaling of subnormals,
// which costs three instructions.
#pragma once

#include <cstdint>

namespace plab::cuda::ptx {

/// a b + c of both halves, each rounded once. PTX ISA "fma.rn.f16x2".
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// The smaller one of both halves; of a number and none, the number. PTX ISA "min.f16x2".
__device__ __forceinline__ uint32_t min_f16x2(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("min.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

/// 2^x, relative error below 2^-22. PTX ISA 9.7.3.21 "ex2".
__device__ __forceinline__ float ex2_approx_ftz(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
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

/// The larger one, NaN if either is; fmaxf prefers the number. PTX ISA "max", sm_80 and newer.
__device__ __forceinline__ float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

}  // namespace plab::cuda::ptx
