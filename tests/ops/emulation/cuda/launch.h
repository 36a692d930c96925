// SPDX-License-Identifier: Apache-2.0
// csrc/cuda/launch.h, with the attributes of an H200 in place of a GPU's.
#pragma once

#include_next <cuda/launch.h>

#include <cstdlib>

namespace plab::cuda {

int device_attribute(cudaDeviceAttr attribute) {
  if (attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor) return 228 << 10;
  if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) return 227 << 10;
  if (attribute == cudaDevAttrReservedSharedMemoryPerBlock) return 1 << 10;
  if (attribute == cudaDevAttrMultiProcessorCount) return 132;
  std::abort();
}

}  // namespace plab::cuda
