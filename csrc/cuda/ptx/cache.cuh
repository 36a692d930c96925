// SPDX-License-Identifier: Apache-2.0
// Global memory accesses with a cache policy that C++ cannot express. PTX ISA 9.7.9.8 "ld", 9.7.9.11 "st".
#pragma once

#include <cuda_runtime.h>

namespace plab::cuda::ptx {

/// 16 bytes that this kernel never writes and reads once: through the read-only path, without a line in L1.
__device__ __forceinline__ uint4 ld_global_nc_no_allocate(const uint4* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

/// 16 bytes that this kernel does not read again.
__device__ __forceinline__ void st_global_no_allocate(uint4* address, uint4 v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

/// Prefetches `bytes` bytes into L2, both multiples of 16, without waiting. PTX ISA
/// "cp.async.bulk.prefetch.L2", sm_90 and newer; nothing elsewhere.
__device__ __forceinline__ void prefetch_l2(const void* address, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes));
#endif
}

}  // namespace plab::cuda::ptx
