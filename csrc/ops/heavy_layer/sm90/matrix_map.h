// SPDX-License-Identifier: Apache-2.0
// Matrices as TMA reads them.
#pragma once

#include <cstdint>

#include "cuda/tensor_map.h"
#include "ops/element_type.h"

namespace plab::ops {

/// A contiguous matrix in boxes of `box_rows` rows and 128 bytes, swizzled for wgmma. What lies outside
/// of the matrix arrives as zeros. fp32 is rounded to TF32 on the way, because wgmma would truncate the lower bits
/// and make every result too small. Data and rows start at multiples of 16 bytes.
inline CUtensorMap matrix_map(const void* data, int64_t rows, int64_t columns, ElementType type,
                              uint32_t box_rows) {
  constexpr uint32_t kRowBytes = 128;
  const uint32_t bytes = type == ElementType::kFloat32 ? 4 : 2;
  const CUtensorMapDataType cuda_type = type == ElementType::kFloat32    ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                        : type == ElementType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                                         : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[1] = {cuuint64_t(columns) * bytes};
  const cuuint32_t box[2] = {kRowBytes / bytes, box_rows};
  return cuda::swizzled_map(cuda_type, data, sizes, strides, box);
}

}  // namespace plab::ops
