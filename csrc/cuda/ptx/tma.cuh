// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"

// Hopper's bulk tensor copies (sm_90). PTX ISA, "cp.async.bulk.tensor".
namespace plab::cuda::ptx {

// One box of a tensor (column, row, head, batch) into shared memory; elements outside the tensor arrive as
// zeros, and the barrier always counts the whole box.
__device__ __forceinline__ void tma_load_4d(uint32_t smem, const CUtensorMap* map, uint32_t barrier,
                                            int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// The same for a matrix (column, row).
__device__ __forceinline__ void tma_load_2d(uint32_t smem, const CUtensorMap* map, uint32_t barrier,
                                            int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(smem),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Named barriers: ids 1 to 15, `threads` counts those that sync and those that only arrive.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Moves registers between warpgroups; every warp of the warpgroup executes it (sm_90a).
template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_inc() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void setmaxnreg_dec() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace plab::cuda::ptx
