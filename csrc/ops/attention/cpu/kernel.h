// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/cpu/operands.h"
#include "ops/attention/cpu/softmax.h"

// One task of the CPU path: a block of queries (forward), or a range of key blocks of one key head (backward).
// Scores are kept transposed, score[key][query], so a vector holds 16 queries of one key. The softmax then needs
// no sum across lanes, K and V are read in their memory layout, and only the block of queries is transposed.
namespace plab::ops::attention::cpu {

// Products: Fma, or Amx where the CPU has it.
template <class T, class Acc, class Products>
struct Task {
  using S = typename Products::S;
  static constexpr Acc kInf = std::numeric_limits<Acc>::infinity();

  static int64_t fwd_scratch(int64_t dim) {
    return Products::Forward::scratch(dim) + kBlock * (padded(dim) + kBlock + 3);
  }

  PLAB_INLINE static void fwd(const FwdParams& p, const Sequence& s, int64_t head, int64_t block,
                              Scratch<Acc>& scratch) {
    const Problem& problem = p.problem;
    const int64_t wide = padded(problem.widest()), first = block * kBlock;
    const int64_t rows = std::min<int64_t>(kBlock, s.q_len - first),
                  kv_head = head / (problem.heads / problem.kv_heads);
    scratch.used = 0;
    typename Products::Forward products(scratch, problem);
    Acc* const out = scratch.take(kBlock * wide);
    Acc* const score = scratch.take(kBlock * kBlock);
    Acc* const top = scratch.take(kBlock);
    Acc* const sum = scratch.take(kBlock);
    Acc* const rescale = scratch.take(kBlock);
    const ScoreMap<Acc> map(problem);
    const Window window(problem, s);
    products.load_queries(p.q, {s.batch, s.q_row + first, head}, rows, map.inner);
    std::fill_n(out, kBlock * wide, Acc(0));
    std::fill_n(top, kBlock, -kInf);
    std::fill_n(sum, kBlock, Acc(0));

    const int64_t begin = window.key_low(first), end = window.key_high(first + rows - 1);
    for (int64_t key = begin / kBlock * kBlock; key < end; key += kBlock) {
      const int64_t keys = std::min<int64_t>(kBlock, s.k_len - key);
      const Place place{s.batch, s.k_row + key, kv_head};
      products.scores(score, p.k, place, keys);
      cap_scores<S>(score, keys, map);
      mask_scores(score, key, keys, first, rows, window);
      for (int i = 0; i < kBlock; i += S::kLanes)
        online_softmax<S>(score + i, int(keys), top + i, sum + i, rescale + i);
      for (int64_t i = 0; i < rows; ++i)
        if (rescale[i] != Acc(1))
          for (int64_t d = 0; d < wide; ++d) out[i * wide + d] *= rescale[i];
      products.add_values(out, score, p.v, place, rows, keys);
    }
    Acc* lse = static_cast<Acc*>(p.lse) + s.batch * p.rows.batch + head * p.rows.head + s.q_row + first;
    for (int64_t i = 0; i < rows; ++i) {
      Acc weight = 1;
      if (problem.sink != nullptr) {
        const Acc logit = static_cast<const Acc*>(problem.sink)[head], higher = std::max(top[i], logit);
        if (higher != -kInf) {
          weight = std::exp(top[i] - higher);
          sum[i] = sum[i] * weight + std::exp(logit - higher);
          top[i] = higher;
        }
      }
      const Acc inverse = sum[i] == Acc(0) ? Acc(0) : weight / sum[i];
      lse[i] = sum[i] == Acc(0) ? -kInf : top[i] + std::log(sum[i]);
      T* to = row_at<T>(p.out, s.batch, s.q_row + first + i, head);
      for (int64_t d = 0; d < problem.head_dim_v; ++d) to[d] = static_cast<T>(out[i * wide + d] * inverse);
    }
  }

  // D of every query of a sequence and head. Sixteen independent sums: a single one is bound by add latency.
  PLAB_INLINE static void statistics(const BwdParams& p, const Sequence& s, int64_t head) {
    constexpr int64_t kSums = 16;
    const int64_t at = s.batch * p.rows.batch + head * p.rows.head + s.q_row, dim = p.problem.head_dim_v;
    for (int64_t i = 0; i < s.q_len; ++i) {
      const T* out = row_at<const T>(p.out, s.batch, s.q_row + i, head);
      const T* dout = row_at<const T>(p.dout, s.batch, s.q_row + i, head);
      Acc sums[kSums] = {}, total = p.dlse != nullptr ? -static_cast<const Acc*>(p.dlse)[at + i] : Acc(0);
      int64_t d = 0;
      for (; d + kSums <= dim; d += kSums)
        for (int64_t j = 0; j < kSums; ++j)
          sums[j] += static_cast<Acc>(out[d + j]) * static_cast<Acc>(dout[d + j]);
      for (; d < dim; ++d) total += static_cast<Acc>(out[d]) * static_cast<Acc>(dout[d]);
      for (const Acc sum : sums) total += sum;
      const bool empty = static_cast<const Acc*>(p.lse)[at + i] == -kInf;
      static_cast<Acc*>(p.delta)[at + i] = empty ? Acc(0) : total;
    }
  }

  // dQ of a sequence and head: the sum of the partial results of all key ranges, `share` elements apart.
  PLAB_INLINE static void sum_shares(const BwdParams& p, const Sequence& s, int64_t head, Acc* first,
                                     int64_t share, int64_t shares) {
    const int64_t dim = p.problem.head_dim, wide = padded(p.problem.widest());
    const Acc scale = Acc(p.problem.scale);
    for (int64_t row = 0; row < s.q_len; ++row, first += wide) {
      for (int64_t run = 1; run < shares; ++run)
        for (int64_t d = 0; d < wide; ++d) first[d] += first[run * share + d];
      T* to = row_at<T>(p.dq, s.batch, s.q_row + row, head);
      for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<T>(first[d] * scale);
    }
  }

  static int64_t bwd_scratch(int64_t dim, int64_t keys) {
    return Products::Backward::scratch(dim, keys) + kBlock * (padded(dim) + 2 * kBlock + 2) +
           2 * (keys + kBlock) * padded(dim);
  }

  // dK and dV of keys [key_begin, key_end) of one key head, whole blocks from key_begin on, and what these keys add
  // to dQ: written to `partial` (rows of the padded width, one matrix per query head of the group) or, without it,
  // to dQ itself.
  PLAB_INLINE static void bwd(const BwdParams& p, const Sequence& s, int64_t kv_head, int64_t key_begin,
                              int64_t key_end, Acc* partial, int64_t partial_head, Scratch<Acc>& scratch) {
    const Problem& problem = p.problem;
    const int64_t dim = problem.head_dim, wide = padded(problem.widest()),
                  group = problem.heads / problem.kv_heads, own_keys = key_end - key_begin,
                  whole = blocks_of(own_keys) * kBlock;
    scratch.used = 0;
    typename Products::Backward products(scratch, problem, own_keys);
    Acc* const dq_space = scratch.take(kBlock * wide);
    Acc* const score = scratch.take(kBlock * kBlock);
    Acc* const slope = scratch.take(kBlock * kBlock);
    Acc* const lse = scratch.take(kBlock);
    Acc* const delta = scratch.take(kBlock);
    Acc* const dk = scratch.take(whole * wide);
    Acc* const dv = scratch.take(whole * wide);
    products.load_keys(p.k, p.v, {s.batch, s.k_row + key_begin, kv_head}, own_keys);
    std::fill_n(dk, whole * wide, Acc(0));
    std::fill_n(dv, whole * wide, Acc(0));
    const ScoreMap<Acc> map(problem);
    const Window window(problem, s);
    const Acc scale = Acc(problem.scale);

    for (int64_t member = 0; member < group; ++member) {
      const int64_t head = kv_head * group + member,
                    stats = s.batch * p.rows.batch + head * p.rows.head + s.q_row;
      for (int64_t first = 0; first < s.q_len; first += kBlock) {
        const int64_t rows = std::min<int64_t>(kBlock, s.q_len - first);
        const int64_t begin = std::max(key_begin, window.key_low(first));
        const int64_t end = std::min(key_end, window.key_high(first + rows - 1));
        Acc* const dq = partial != nullptr ? partial + member * partial_head + first * wide : dq_space;
        std::fill_n(dq, rows * wide, Acc(0));
        if (begin < end) {
          products.load_queries(p.q, p.dout, {s.batch, s.q_row + first, head}, rows, map.inner);
          for (int64_t i = 0; i < kBlock; ++i) {
            lse[i] = i < rows ? static_cast<const Acc*>(p.lse)[stats + first + i] : -kInf;
            if (lse[i] == -kInf) lse[i] = kInf;  // nothing visible: every probability becomes 0
            delta[i] = i < rows ? static_cast<const Acc*>(p.delta)[stats + first + i] : Acc(0);
          }
          for (int64_t key = begin / kBlock * kBlock; key < end; key += kBlock) {
            const int64_t keys = std::min<int64_t>(kBlock, key_end - key);
            const int64_t from = key - key_begin;
            products.scores(score, slope, from, keys);
            probabilities<S>(score, slope, keys, lse, delta, map);
            if (key + keys > window.key_high(first) || key < window.key_low(first + rows - 1))
              clear_masked(score, slope, key, keys, first, rows, window);
            products.add_gradients(dq, dk + from * wide, dv + from * wide, score, slope, from, keys, rows);
          }
        }
        if (partial != nullptr) continue;
        for (int64_t i = 0; i < rows; ++i) {
          T* to = row_at<T>(p.dq, s.batch, s.q_row + first + i, head);
          for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<T>(dq[i * wide + d] * scale);
        }
      }
    }
    for (int64_t j = 0; j < own_keys; ++j) {
      T* to_k = row_at<T>(p.dk, s.batch, s.k_row + key_begin + j, kv_head);
      T* to_v = row_at<T>(p.dv, s.batch, s.k_row + key_begin + j, kv_head);
      for (int64_t d = 0; d < dim; ++d) to_k[d] = static_cast<T>(dk[j * wide + d] * scale);
      for (int64_t d = 0; d < problem.head_dim_v; ++d) to_v[d] = static_cast<T>(dv[j * wide + d]);
    }
  }
};

}  // namespace plab::ops::attention::cpu
