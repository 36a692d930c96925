// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory that need no registers. PTX ISA, "Data Movement and Conversion
// Instructions: cp.async".
#pragma once

namespace plab::cuda::ptx {

/// Starts a copy of 16 bytes, both addresses multiples of 16. It bypasses L1.
__device__ __forceinline__ void cp_async_cg(void* shared, const void* global) {
  const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(global) : "memory");
}

/// The same, but reads only the first `bytes` of them and fills up with zeros.
__device__ __forceinline__ void cp_async_cg_part(void* shared, const void* global, unsigned bytes) {
  const unsigned target = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(global), "r"(bytes)
               : "memory");
}

/// The copies started since the last commit become one group; without any, an empty one.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's last groups are still on their way. Other threads need a
/// barrier after it.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace plab::cuda::ptx
