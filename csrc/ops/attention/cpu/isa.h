// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "ops/attention/cpu/kernel.h"

// The kernels of the CPU path, compiled for every instruction set, and the choice between them at run time.
namespace plab::ops::attention::cpu {

// The widest vectors that this process may use: all that the CPU has, or those named in the environment variable
// PROFILING_LAB_ATTENTION_PATH (avx512, avx2 or sse2, all without matrix tiles). The variable serves tests and
// comparisons.
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

// The same task for three instruction sets. Everything inlined into a function is compiled for that function's
// target.
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

// The kernels of an element type. bfloat16's are in amx_kernels.h, which no other type includes: the compiler reads
// its intrinsics for half a second.
template <class T>
struct KernelsFor {
  using Type = Kernels<T, Accum<T>>;
};
template <>
struct KernelsFor<BFloat16>;
template <class T>
using KernelsOf = typename KernelsFor<T>::Type;

}  // namespace plab::ops::attention::cpu
