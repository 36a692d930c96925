// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda.h>

#include <cstdint>

// Bulk tensor copies from shared to global memory. They complete by groups of the thread that issued them.
// PTX ISA, "cp.async.bulk.tensor" and "cp.async.bulk.wait_group".
namespace plab::cuda::ptx {

// One box from shared memory to a tensor (column, row, head, batch); what lies outside the tensor is not
// written.
__device__ __forceinline__ void tma_store_4d(const CUtensorMap* map, uint32_t smem, int column, int row,
                                             int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
      "r"(smem), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until this thread's stores have read their shared memory, which may then be written again.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace plab::cuda::ptx
