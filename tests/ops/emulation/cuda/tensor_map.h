// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/tensor_map.h.
#pragma once

#include "cuda/ptx/tma.cuh"

namespace plab::cuda {

template <int kRank>
CUtensorMap swizzled_map(CUtensorMapDataType, const void* data, const cuuint64_t (&sizes)[kRank],
                         const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  static_assert(kRank == 4);
  if (box[0] != 64 || box[2] != 1 || box[3] != 1 || box[1] > 256) std::abort();
  ptx::Boxes boxes{static_cast<unsigned char*>(const_cast<void*>(data)), {}, {}, box[1]};
  for (int i = 0; i < kRank; ++i) boxes.sizes[i] = std::int64_t(sizes[i]);
  for (int i = 0; i < kRank - 1; ++i) {
    if (strides[i] % 16 != 0) std::abort();
    boxes.strides[i] = std::int64_t(strides[i]);
  }
  CUtensorMap map{};
  std::memcpy(&map, &boxes, sizeof boxes);
  return map;
}

}  // namespace plab::cuda
