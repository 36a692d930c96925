// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/vec.cuh"

namespace plab::ops {

/// Writes two neighbouring accumulator columns each of groups j and j + 1 as whole 32-byte sectors.
template <class Element>
__device__ __forceinline__ void store_pairs(Element* row, int64_t column, int64_t d, bool row_is_valid,
                                            const float (&v)[4]) {
  const int lane = static_cast<int>(threadIdx.x % 4);
  if constexpr (sizeof(Element) == 4) {
    if (row_is_valid && column + 2 * lane < d)
      *reinterpret_cast<float2*>(row + column + 2 * lane) = make_float2(v[0], v[1]);
    if (row_is_valid && column + 8 + 2 * lane < d)
      *reinterpret_cast<float2*>(row + column + 8 + 2 * lane) = make_float2(v[2], v[3]);
  } else {  // neighbours trade: even lanes get four columns of the first group, odd ones of the second
    const uint32_t first = cuda::detail::pack_word<Element>(v[0], v[1]),
                   second = cuda::detail::pack_word<Element>(v[2], v[3]);
    const bool even = lane % 2 == 0;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, even ? second : first, 1);
    column += (even ? 0 : 8) + 4 * (lane / 2);
    if (row_is_valid && column < d)
      *reinterpret_cast<uint2*>(row + column) = even ? make_uint2(first, other) : make_uint2(other, second);
  }
}

}  // namespace plab::ops
