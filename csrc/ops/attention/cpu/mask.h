// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/cpu/simd.h"

// Which keys a query sees, and the mask on a block of scores, score[key][query].
namespace plab::ops::attention::cpu {

constexpr int kBlock = 64;  // queries, and keys, of a block

struct Sequence {
  int64_t batch, q_row, k_row, q_len, k_len;
};

// The half-open ranges that a key or a query sees; bounds never leave [0, length].
struct Window {
  int64_t shift, left, right, q_len, k_len;
  Window(const Problem& p, const Sequence& s)
      : shift(s.k_len - s.q_len),
        left(p.window_left),
        right(p.window_right),
        q_len(s.q_len),
        k_len(s.k_len) {}
  int64_t key_low(int64_t i) const { return left < 0 ? 0 : std::clamp<int64_t>(i + shift - left, 0, k_len); }
  int64_t key_high(int64_t i) const {
    return right < 0 ? k_len : std::clamp<int64_t>(i + shift + right + 1, 0, k_len);
  }
  int64_t query_low(int64_t j) const {
    return right < 0 ? 0 : std::clamp<int64_t>(j - shift - right, 0, q_len);
  }
  int64_t query_high(int64_t j) const {
    return left < 0 ? q_len : std::clamp<int64_t>(j - shift + left + 1, 0, q_len);
  }
};

// Scores of pairs that do not see each other become -inf; so do the columns of queries that do not exist.
template <class Acc>
PLAB_INLINE void mask_scores(Acc* score, int64_t key, int64_t keys, int64_t first, int64_t rows,
                             const Window& window) {
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t low = std::clamp<int64_t>(window.query_low(key + j) - first, 0, kBlock);
    const int64_t high = std::clamp<int64_t>(std::min(rows, window.query_high(key + j) - first), low, kBlock);
    std::fill(score + j * kBlock, score + j * kBlock + low, -std::numeric_limits<Acc>::infinity());
    std::fill(score + j * kBlock + high, score + (j + 1) * kBlock, -std::numeric_limits<Acc>::infinity());
  }
}

template <class Acc>
PLAB_INLINE void clear_masked(Acc* score, Acc* slope, int64_t key, int64_t keys, int64_t first, int64_t rows,
                              const Window& window) {
  for (int64_t j = 0; j < keys; ++j) {
    const int64_t low = std::clamp<int64_t>(window.query_low(key + j) - first, 0, kBlock);
    const int64_t high = std::clamp<int64_t>(std::min(rows, window.query_high(key + j) - first), low, kBlock);
    for (Acc* matrix : {score, slope}) {
      std::fill(matrix + j * kBlock, matrix + j * kBlock + low, Acc(0));
      std::fill(matrix + j * kBlock + high, matrix + (j + 1) * kBlock, Acc(0));
    }
  }
}

}  // namespace plab::ops::attention::cpu
