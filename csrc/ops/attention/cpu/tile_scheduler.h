// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <new>
#include <vector>

#include "ops/attention/cpu/isa.h"
#include "ops/attention/cpu/launch.h"
#include "torch_abi/parallel.h"

// The tile scheduler of the CPU path: tasks on torch's threads. Memory is linear in the number of rows. Tasks
// are handed out one by one, because under a causal mask they differ in length. The number of threads does not
// change what a task computes.
namespace plab::ops::attention::cpu {

inline std::vector<Sequence> sequences(const Problem& p) {
  std::vector<Sequence> result;
  for (int64_t b = 0; b < p.batch; ++b) {
    if (p.cu_seqlens_q == nullptr) {
      result.push_back({b, 0, 0, p.q_len, p.k_len});
    } else {
      const int64_t q = p.cu_seqlens_q[b], k = p.cu_seqlens_k[b];
      result.push_back({0, q, k, p.cu_seqlens_q[b + 1] - q, p.cu_seqlens_k[b + 1] - k});
    }
  }
  return result;
}

// Calls run(task, scratch) for every task on torch's threads, each with its own scratch.
template <class Acc, class Run>
void for_each_task(int64_t tasks, int64_t scratch_size, const Run& run) {
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};
  torch_abi::parallel_for(tasks, 1, [&](int64_t, int64_t) {
    try {
      Scratch<Acc> scratch(scratch_size);
      for (int64_t task; (task = next.fetch_add(1)) < tasks;) run(task, scratch);
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  });
  if (out_of_memory) throw std::bad_alloc();
}

// Rows that no sequence owns.
template <class T>
void clear_tail(const View& view, int64_t begin, int64_t rows, int64_t heads, int64_t dim) {
  for (int64_t row = begin; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      std::fill_n(row_at<T>(view, 0, row, head), dim, static_cast<T>(0.f));
}

template <class T>
void fwd_element(const FwdParams& p) {
  using Acc = Accum<T>;
  const Problem& problem = p.problem;
  const std::vector<Sequence> all = sequences(problem);
  std::vector<int64_t> first{0};  // first[i]: blocks of the sequences before i
  for (const Sequence& s : all) first.push_back(first.back() + blocks_of(s.q_len));
  if (problem.cu_seqlens_q != nullptr) {
    const int64_t end = problem.cu_seqlens_q[problem.batch];
    clear_tail<T>(p.out, end, problem.q_len, problem.heads, problem.head_dim_v);
    for (int64_t head = 0; head < problem.heads; ++head) {
      Acc* lse = static_cast<Acc*>(p.lse) + head * p.rows.head;
      std::fill(lse + end, lse + problem.q_len, -std::numeric_limits<Acc>::infinity());
    }
  }
  const auto kernel = KernelsOf<T>::fwd();
  for_each_task<Acc>(first.back() * problem.heads, KernelsOf<T>::fwd_scratch(problem.widest()),
                     [&](int64_t task, Scratch<Acc>& scratch) {
                       // Last blocks first: under a causal mask they take longest.
                       const int64_t head = task % problem.heads,
                                     block = first.back() - 1 - task / problem.heads;
                       const auto after = std::upper_bound(first.begin(), first.end(), block);
                       const int64_t sequence = after - first.begin() - 1;
                       kernel(p, all[sequence], head, block - first[sequence], scratch);
                     });
}

template <class T>
void bwd_element(const BwdParams& p) {
  using Acc = Accum<T>;
  const Problem& problem = p.problem;
  const std::vector<Sequence> all = sequences(problem);
  const int64_t dim = problem.widest(), wide = padded(dim), group = problem.heads / problem.kv_heads;
  if (problem.cu_seqlens_q != nullptr) {
    clear_tail<T>(p.dq, problem.cu_seqlens_q[problem.batch], problem.q_len, problem.heads, problem.head_dim);
    const int64_t end = problem.cu_seqlens_k[problem.batch];
    clear_tail<T>(p.dk, end, problem.k_len, problem.kv_heads, problem.head_dim);
    clear_tail<T>(p.dv, end, problem.k_len, problem.kv_heads, problem.head_dim_v);
  }
  const int64_t count = static_cast<int64_t>(all.size());
  torch_abi::parallel_for(count * problem.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      Kernels<T, Acc>::statistics()(p, all[i / problem.heads], i % problem.heads);
  });
  for (int64_t head = 0; p.dsink != nullptr && head < problem.heads; ++head) {
    const Acc logit = static_cast<const Acc*>(problem.sink)[head];
    Acc sum = 0;
    for (const Sequence& s : all)
      for (int64_t i = 0; i < s.q_len; ++i) {
        const int64_t at = s.batch * p.rows.batch + head * p.rows.head + s.q_row + i;
        const Acc lse = static_cast<const Acc*>(p.lse)[at];
        if (lse != -std::numeric_limits<Acc>::infinity())
          sum -= std::exp(logit - lse) * static_cast<const Acc*>(p.delta)[at];
      }
    static_cast<Acc*>(p.dsink)[head] = sum;
  }

  // A task owns a range of keys of one key head. With few heads there are several ranges per head, and
  // their parts of dQ are summed afterwards.
  int64_t longest = 1;
  for (const Sequence& s : all) longest = std::max(longest, blocks_of(s.k_len));
  constexpr int64_t kWantedTasks = 32;
  const int64_t per_run = std::max<int64_t>(1, longest * count * problem.kv_heads / kWantedTasks);
  const int64_t run_rows = std::min(per_run, longest) * kBlock;
  struct Run {
    int64_t sequence, kv_head, begin, end, partial;  // partial: offset into the buffer, -1: straight into dQ
  };
  std::vector<Run> runs;
  int64_t buffer = 0;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) {
      const bool whole = all[i].k_len <= run_rows;
      for (int64_t begin = 0; begin < std::max<int64_t>(1, all[i].k_len); begin += run_rows) {
        runs.push_back({i, kv_head, begin, std::min(begin + run_rows, all[i].k_len), whole ? -1 : buffer});
        if (!whole) buffer += group * all[i].q_len * wide;
      }
    }
  const Lines<Acc> partials(buffer);
  const auto kernel = KernelsOf<T>::bwd();
  for_each_task<Acc>(static_cast<int64_t>(runs.size()), KernelsOf<T>::bwd_scratch(dim, run_rows),
                     [&](int64_t task, Scratch<Acc>& scratch) {
                       const Run& run = runs[task];
                       const Sequence& s = all[run.sequence];
                       Acc* const partial = run.partial < 0 ? nullptr : partials.begin() + run.partial;
                       kernel(p, s, run.kv_head, run.begin, run.end, partial, s.q_len * wide, scratch);
                     });
  if (buffer == 0) return;

  torch_abi::parallel_for(count * problem.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sequence = i / problem.heads, head = i % problem.heads;
      const Sequence& s = all[sequence];
      const auto first = std::find_if(runs.begin(), runs.end(), [&](const Run& run) {
        return run.sequence == sequence && run.kv_head == head / group;
      });
      if (first->partial < 0) continue;
      const int64_t share = group * s.q_len * wide, shares = (s.k_len + run_rows - 1) / run_rows;
      Acc* const from = partials.begin() + first->partial + head % group * s.q_len * wide;
      Kernels<T, Acc>::sum_shares()(p, s, head, from, share, shares);
    }
  });
}

}  // namespace plab::ops::attention::cpu
