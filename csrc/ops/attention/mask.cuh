// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/tile_scheduler.cuh"

// Which keys a query sees: causal masks, sliding windows and the ends of sequences, as bounds per row and per
// column. Also the masks on an accumulator fragment (softmax.cuh says which element a register holds). In the
// forward its rows are queries, in the backward of both paths they are keys.
namespace plab::ops::attention {

// The keys that query rows [first, last] can see, as a half-open range; empty ranges have begin >= end.
struct Visible {
  int shift, left, right;  // right and left: about INT_MAX / 2 if unbounded
  __device__ __forceinline__ Visible(const Problem& p, const Tile& t)
      : shift(t.k_len - t.q_len),
        left(p.window_left < 0 || p.window_left > kFar ? kFar : int(p.window_left)),
        right(p.window_right < 0 || p.window_right > kFar ? kFar : int(p.window_right)) {}
  // One bound per side of a row: key j is visible where low(i) <= j < high(i).
  __device__ __forceinline__ int low(int i) const { return left == kFar ? 0 : max(0, i + shift - left); }
  __device__ __forceinline__ int high(int i, int k_len) const {
    return right == kFar ? k_len : max(0, min(k_len, i + shift + right + 1));
  }
  // Queries that see key j: low_query(j) <= i < high_query(j).
  __device__ __forceinline__ int low_query(int j) const {
    return right == kFar ? 0 : max(0, j - shift - right);
  }
  __device__ __forceinline__ int high_query(int j, int q_len) const {
    return left == kFar ? q_len : max(0, min(q_len, j - shift + left + 1));
  }
  static constexpr int kFar = 1 << 30;
};

// Bit e says whether element e of a fragment's row, of columns 0, 1, 8, 9, 16, 17 ..., lies before `end`.
__device__ __forceinline__ uint32_t bits_before(int end) {
  const int count = min(max(2 * (end >> 3) + min(end & 7, 2), 0), 32);
  return __funnelshift_lc(0, 1, count) - 1;  // a shift by 32 gives 0
}

// Keeps the scores a query sees, sets the others to -inf. `row` is the band's first query, `column` the tile's
// first key. The mask has a bit per element: testing a bit is one instruction, comparing with two bounds is two.
template <int kRegs>
__device__ __forceinline__ void mask_scores(float (&s)[kRegs], int column, int row, const Visible& visible,
                                            int k_len) {
  const int lane = int(threadIdx.x & 31);
  column += 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int low = visible.low(row + lane / 4 + 8 * h) - column;
    const int high = visible.high(row + lane / 4 + 8 * h, k_len) - column;
#pragma unroll
    for (int first = 0; first < kRegs; first += 64) {  // 128 columns: 64 registers, 32 of them this row's
      const uint32_t seen = bits_before(high - 2 * first) & ~bits_before(low - 2 * first);
#pragma unroll
      for (int i = first + 2 * h; i < min(first + 64, kRegs); i += 4) {
        if (!(seen >> (2 * ((i - first) / 4)) & 1)) s[i] = -INFINITY;
        if (!(seen >> (2 * ((i - first) / 4) + 1) & 1)) s[i + 1] = -INFINITY;
      }
    }
  }
}

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

}  // namespace plab::ops::attention
