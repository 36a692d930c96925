// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (sm_90 and newer; no instruction elsewhere): a kernel that was launched with
// the attribute starts while the one before it still runs. PTX ISA 9.7.13.13 "griddepcontrol".
#pragma once

namespace plab::cuda::ptx {

/// Of the first kernel: the next may start once every block has said so or ended. Promises nothing about
/// memory.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Of the next kernel, before it reads or writes what the first does: waits until that has ended and its
/// writes can be seen.
__device__ __forceinline__ void wait_for_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace plab::cuda::ptx
