// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Bulk copies of consecutive bytes between shared and global memory (sm_90), and the order that blocks need
// who hand such bytes on. Addresses and sizes are multiples of 16. PTX ISA, "cp.async.bulk",
// "cp.reduce.async.bulk".
namespace plab::cuda::ptx {

// Whether the GPU that is compiled for has them.
#if __CUDA_ARCH__ >= 900
constexpr bool kHasBulkCopies = true;
#else
constexpr bool kHasBulkCopies = false;
#endif

// Into shared memory; completes on a barrier that expects the bytes.
__device__ __forceinline__ void bulk_load(uint32_t smem, const void* global, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// Out of shared memory; these complete by groups of the thread that issued them.
__device__ __forceinline__ void bulk_store(void* global, uint32_t smem, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(smem),
               "r"(bytes)
               : "memory");
}

// The same, adding floats in L2.
__device__ __forceinline__ void bulk_reduce_add(float* global, uint32_t smem, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
               "r"(smem), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's copies have read their shared memory, which may then be written again.
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until they are complete: their bytes are where other blocks find them.
__device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ int load_acquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Orders what this thread has seen of global memory before its later copies.
__device__ __forceinline__ void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace plab::cuda::ptx
