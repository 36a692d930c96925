// SPDX-License-Identifier: Apache-2.0
// Tensors as TMA reads and writes them.
#pragma once

#include <cuda.h>

#include "cuda/launch.h"

namespace plab::cuda {

/// Boxes of a tensor, of 128 bytes a row, swizzled for wgmma; what lies outside of the tensor arrives as
/// zeros. Sizes and boxes in elements, innermost first; strides in bytes, of all dimensions but the
/// innermost. Data and strides are multiples of 16 bytes.
template <int kRank>
CUtensorMap swizzled_map(CUtensorMapDataType type, const void* data, const cuuint64_t (&sizes)[kRank],
                         const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  // From the driver in use: linking it would ask for a driver where none is needed.
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    PLAB_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                     cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) fail("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  cuuint32_t steps[kRank];
  for (cuuint32_t& step : steps) step = 1;
  CUtensorMap map;
  const CUresult status = encode(&map, type, kRank, const_cast<void*>(data), sizes, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) fail("cuTensorMapEncodeTiled failed with %d", static_cast<int>(status));
  return map;
}

}  // namespace plab::cuda
