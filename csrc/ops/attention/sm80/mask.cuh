// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/mask.cuh"

// The mask on a fragment of the backward, whose rows are keys.
namespace plab::ops::attention::sm80 {

// Scores of keys on the rows that queries on the columns do not see become -inf. `key`: the band's first key,
// `query`: the fragment's first query.
template <int kRegs>
__device__ __forceinline__ void mask_keys(float (&s)[kRegs], int key, int query, const Visible& visible,
                                          const Tile& tile) {
  const int lane = int(threadIdx.x & 31);
  query += 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = key + lane / 4 + 8 * h;
    const int low = visible.low_query(j) - query;
    const int high = j < tile.k_len ? visible.high_query(j, tile.q_len) - query : 0;
    const uint32_t seen = bits_before(high) & ~bits_before(low);
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      if (!(seen >> (2 * (i / 4)) & 1)) s[i] = -INFINITY;
      if (!(seen >> (2 * (i / 4) + 1) & 1)) s[i + 1] = -INFINITY;
    }
  }
}

}  // namespace plab::ops::attention::sm80
