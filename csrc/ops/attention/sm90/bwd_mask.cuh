// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/mask.cuh"

// The mask on a fragment of the backward, whose rows are keys.
namespace plab::ops::attention::sm90 {

// P becomes 0 where key and query do not see each other; `key` and `query` are those of register 0.
template <int kRegs>
__device__ __forceinline__ void clear_unseen(float (&s)[kRegs], const Visible& visible, const Tile& tile,
                                             int key, int query) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int low = visible.low_query(key + 8 * h) - query;
    const int high = visible.high_query(key + 8 * h, tile.q_len) - query;
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      const int column = 2 * (i - 2 * h);
      if (column < low || column >= high) s[i] = 0.f;
      if (column + 1 < low || column + 1 >= high) s[i + 1] = 0.f;
    }
  }
}

}  // namespace plab::ops::attention::sm90
