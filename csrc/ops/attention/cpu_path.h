// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include "ops/attention/cpu.h"
#include "ops/attention/cpu_amx.h"
#include "ops/attention/cpu_tasks.h"
#include "torch_abi/parallel.h"

// The CPU path: memory grows with the rows, never with their product. Tasks are handed out one by one,
// because under a causal mask they differ in length; what a task computes does not depend on the number of
// threads.
namespace plab::ops::attention {

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

// The widest vectors that a process wants: all there are, or those that its environment names in
// PROFILING_LAB_ATTENTION_PATH (avx512, avx2 or sse2, none of them with matrix tiles): to test and to compare
// them.
struct Wanted {
  int vector_bytes = 64;
  bool tiles = true;
};
inline Wanted wanted() {
  const char* const path = std::getenv("PROFILING_LAB_ATTENTION_PATH");
  const std::string_view name = path == nullptr ? "" : path;
  if (name == "avx512") return {64, false};
  if (name == "avx2") return {32, false};
  if (name == "sse2") return {16, false};
  return {};
}

// The same task for three instruction sets; the target of the caller is the target of everything inlined into
// it.
#if defined(__x86_64__)
#define PLAB_TARGET(level) [[gnu::target("arch=" level), gnu::flatten]]
inline int vector_bytes() {
  static const int bytes = std::min(wanted().vector_bytes, __builtin_cpu_supports("x86-64-v4")   ? 64
                                                           : __builtin_cpu_supports("x86-64-v3") ? 32
                                                                                                 : 16);
  return bytes;
}
#else
#define PLAB_TARGET(level) [[gnu::flatten]]
inline int vector_bytes() { return 16; }
#endif

// Kernels<T, Acc>::name(): the function of this name in Task, compiled for the widest vectors this CPU has.
#define PLAB_KERNEL(name, parameters, arguments)                                            \
  PLAB_TARGET("x86-64-v4") static void name##_64 parameters {                               \
    Task<T, Acc, Fma<T, Acc, 64>>::name arguments;                                          \
  }                                                                                         \
  PLAB_TARGET("x86-64-v3") static void name##_32 parameters {                               \
    Task<T, Acc, Fma<T, Acc, 32>>::name arguments;                                          \
  }                                                                                         \
  static void name##_16 parameters { Task<T, Acc, Fma<T, Acc, 16>>::name arguments; }       \
  static auto name() {                                                                      \
    return vector_bytes() == 64 ? name##_64 : vector_bytes() == 32 ? name##_32 : name##_16; \
  }

template <class T, class Acc>
struct Kernels {
  using AnyTask = Task<T, Acc, Fma<T, Acc, 16>>;  // of scratch and statistics all have the same
  static int64_t fwd_scratch(int64_t dim) { return AnyTask::fwd_scratch(dim); }
  static int64_t bwd_scratch(int64_t dim, int64_t keys) { return AnyTask::bwd_scratch(dim, keys); }
  PLAB_KERNEL(fwd,
              (const FwdParams& p, const Sequence& s, int64_t head, int64_t block, Scratch<Acc>& scratch),
              (p, s, head, block, scratch))
  PLAB_KERNEL(statistics, (const BwdParams& p, const Sequence& s, int64_t head), (p, s, head))
  PLAB_KERNEL(bwd,
              (const BwdParams& p, const Sequence& s, int64_t head, int64_t begin, int64_t end, Acc* partial,
               int64_t partial_head, Scratch<Acc>& scratch),
              (p, s, head, begin, end, partial, partial_head, scratch))
  PLAB_KERNEL(sum_shares,
              (const BwdParams& p, const Sequence& s, int64_t head, Acc* first, int64_t share,
               int64_t shares),
              (p, s, head, first, share, shares))
};

#ifdef PLAB_AMX
// bfloat16 on CPUs with matrix tiles: the two that multiply.
struct AmxKernels : Kernels<BFloat16, float> {
  using Plain = Kernels<BFloat16, float>;
  using Tiled = Task<BFloat16, float, Amx>;
  static int64_t fwd_scratch(int64_t dim) {
    return std::max(Plain::fwd_scratch(dim), Tiled::fwd_scratch(dim));
  }
  static int64_t bwd_scratch(int64_t dim, int64_t keys) {
    return std::max(Plain::bwd_scratch(dim, keys), Tiled::bwd_scratch(dim, keys));
  }
  PLAB_AMX static void fwd_tiles(const FwdParams& p, const Sequence& s, int64_t head, int64_t block,
                                 Scratch<float>& scratch) {
    const AmxTiles tiles;
    Tiled::fwd(p, s, head, block, scratch);
  }
  PLAB_AMX static void bwd_tiles(const BwdParams& p, const Sequence& s, int64_t head, int64_t begin,
                                 int64_t end, float* partial, int64_t partial_head, Scratch<float>& scratch) {
    const AmxTiles tiles;
    Tiled::bwd(p, s, head, begin, end, partial, partial_head, scratch);
  }
  static bool tiles() {
    static const bool answer = wanted().tiles && has_amx();
    return answer;
  }
  static auto fwd() { return tiles() ? fwd_tiles : Plain::fwd(); }
  static auto bwd() { return tiles() ? bwd_tiles : Plain::bwd(); }
};
template <class T>
using KernelsOf = std::conditional_t<std::is_same_v<T, BFloat16>, AmxKernels, Kernels<T, Accum<T>>>;
#else
template <class T>
using KernelsOf = Kernels<T, Accum<T>>;
#endif

// Rows that no sequence owns.
template <class T>
void clear_tail(const View& view, int64_t begin, int64_t rows, int64_t heads, int64_t dim) {
  for (int64_t row = begin; row < rows; ++row)
    for (int64_t head = 0; head < heads; ++head)
      std::fill_n(row_at<T>(view, 0, row, head), dim, static_cast<T>(0.f));
}

template <class T>
void fwd_cpu(const FwdParams& p) {
  using Acc = Accum<T>;
  const Problem& problem = p.problem;
  const std::vector<Sequence> all = sequences(problem);
  std::vector<int64_t> first{0};  // first[i]: blocks of the sequences before i
  for (const Sequence& s : all) first.push_back(first.back() + blocks_of(s.q_len));
  if (problem.cu_seqlens_q != nullptr) {
    const int64_t end = problem.cu_seqlens_q[problem.batch];
    clear_tail<T>(p.out, end, problem.q_len, problem.heads, problem.head_dim);
    for (int64_t head = 0; head < problem.heads; ++head) {
      Acc* lse = static_cast<Acc*>(p.lse) + head * p.rows.head;
      std::fill(lse + end, lse + problem.q_len, -std::numeric_limits<Acc>::infinity());
    }
  }
  const auto kernel = KernelsOf<T>::fwd();
  for_each_task<Acc>(first.back() * problem.heads, KernelsOf<T>::fwd_scratch(problem.head_dim),
                     [&](int64_t task, Scratch<Acc>& scratch) {
                       // Last blocks first: under a causal mask they are the long ones.
                       const int64_t head = task % problem.heads,
                                     block = first.back() - 1 - task / problem.heads;
                       const auto after = std::upper_bound(first.begin(), first.end(), block);
                       const int64_t sequence = after - first.begin() - 1;
                       kernel(p, all[sequence], head, block - first[sequence], scratch);
                     });
}

template <class T>
void bwd_cpu(const BwdParams& p) {
  using Acc = Accum<T>;
  const Problem& problem = p.problem;
  const std::vector<Sequence> all = sequences(problem);
  const int64_t dim = problem.head_dim, wide = padded(dim), group = problem.heads / problem.kv_heads;
  if (problem.cu_seqlens_q != nullptr) {
    clear_tail<T>(p.dq, problem.cu_seqlens_q[problem.batch], problem.q_len, problem.heads, dim);
    for (const View* view : {&p.dk, &p.dv})
      clear_tail<T>(*view, problem.cu_seqlens_k[problem.batch], problem.k_len, problem.kv_heads, dim);
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

  // A task owns a run of keys of one key head. Few heads: several runs per head, whose shares of dQ are
  // summed afterwards.
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

}  // namespace plab::ops::attention
