// SPDX-License-Identifier: Apache-2.0
// Just enough of CUDA to run a kernel's source on the CPU, one block after the other: every thread of a block
// is one here (threads_on_cpu.h), __syncthreads and shuffles are barriers. It proves indexing, reductions and tails where
// there is no GPU, and under ThreadSanitizer that shared memory is synchronised; it says nothing about speed
// or about the PTX behind cuda/ptx.
//
// Kernels write `static __shared__` for static and `extern __shared__ float4 shared[]` for dynamic shared
// memory: without the keyword, both mean the right thing here. Blocks of a cluster run concurrently, each with
// a region of its own; their kernels reach shared memory by 32-bit addresses alone (cuda/ptx).
#pragma once

#include <vector_functions.h>
#include <vector_types.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <vector>

#include "threads_on_cpu.h"

#undef __device__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct Index {
  unsigned x;
};
inline Index blockDim, gridDim;
template <unsigned on_cpu::Thread::*kIndex>
struct IndexOfThread {
  struct {
    operator unsigned() const { return on_cpu::now().*kIndex; }
  } x;
};
inline constexpr IndexOfThread<&on_cpu::Thread::index> threadIdx;
inline constexpr IndexOfThread<&on_cpu::Thread::block> blockIdx;

namespace on_cpu {

/// Who leaves has seen what all did before they arrived, and nothing of what they do afterwards.
class CountingBarrier {
 public:
  explicit CountingBarrier(unsigned threads) : threads_(threads) {}
  void arrive_and_wait() {
    const unsigned now = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(now + 1, std::memory_order_release);
    } else {
      wait([&] { return phase_.load(std::memory_order_acquire) != now; });
    }
  }

 private:
  std::atomic<unsigned> phase_ = 0, arrived_ = 0;
  unsigned threads_;
};

using Barrier = std::unique_ptr<CountingBarrier>;
inline std::vector<Barrier> blocks_of_cluster, warps;
inline Barrier cluster;
inline unsigned rank() { return now().rank; }
inline float lanes[2][32][32];  // of the warps of all blocks of a cluster, for exchanges in turn
inline OfThread<unsigned> exchanges;
inline unsigned warp_of_cluster() { return rank() * (blockDim.x / 32) + threadIdx.x / 32; }

/// Dynamic shared memory of the blocks of a cluster (cuda/ptx/dynamic_shared.cuh).
inline float4 dynamic_shared[16][16384];

/// 32-bit shared addresses. Dynamic memory has the highest bit; static objects count from one of them.
constexpr std::uint32_t kDynamic = 1u << 31;
alignas(256) inline char origin;
inline std::uint32_t to_shared_address(const void* pointer) {
  const auto* byte = static_cast<const char*>(pointer);
  const auto* dynamic = reinterpret_cast<const char*>(dynamic_shared);
  if (byte >= dynamic && byte < dynamic + sizeof dynamic_shared)
    return kDynamic | static_cast<std::uint32_t>(byte - dynamic);
  return static_cast<std::uint32_t>(byte - &origin);
}
inline void* of_dynamic_address(std::uint32_t address) {
  if (address < kDynamic) std::abort();
  return reinterpret_cast<char*>(dynamic_shared) + (address - kDynamic);
}
inline void (*after_block)() = nullptr;  // what a block must not leave to the next one

/// Runs `kernel` as a grid, `size` blocks at a time.
template <class Kernel>
void launch(unsigned blocks, unsigned threads, Kernel&& kernel, unsigned size = 1) {
  gridDim.x = blocks, blockDim.x = threads;
  cluster = std::make_unique<CountingBarrier>(threads * size);
  blocks_of_cluster.clear(), warps.clear();
  for (unsigned b = 0; b < size; ++b) blocks_of_cluster.push_back(std::make_unique<CountingBarrier>(threads));
  for (unsigned w = 0; w < size * threads / 32; ++w) warps.push_back(std::make_unique<CountingBarrier>(32));
  run(size, threads, [&] {
    Thread& me = now();
    for (unsigned b = 0; b < blocks; b += size) {
      me.block = b + me.rank;
      kernel();
      cluster->arrive_and_wait();
      if (me.number == 0 && after_block != nullptr) after_block();
      cluster->arrive_and_wait();
    }
  });
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::blocks_of_cluster[on_cpu::rank()]->arrive_and_wait(); }
inline void __syncwarp() { on_cpu::warps[on_cpu::warp_of_cluster()]->arrive_and_wait(); }
/// What `read` finds among the values of the warp's lanes. The next exchange has other memory, so that who is late
/// still reads this one's.
template <class Read>
auto exchange(float value, Read&& read) {
  auto& lanes = on_cpu::lanes[on_cpu::exchanges.mine()++ % 2][on_cpu::warp_of_cluster()];
  lanes[threadIdx.x % 32] = value;
  __syncwarp();
  return read(lanes, threadIdx.x % 32);
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return exchange(value, [&](const auto& lanes, unsigned lane) { return lanes[lane ^ mask]; });
}
inline float __shfl_sync(unsigned, float value, int from) {
  return exchange(value, [&](const auto& lanes, unsigned) { return lanes[from % 32]; });
}
inline int __shfl_sync(unsigned mask, int value, int from) {
  return std::bit_cast<int>(__shfl_sync(mask, std::bit_cast<float>(value), from));
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) requires(sizeof(T) == 8) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto low = std::uint32_t(__shfl_sync(mask, int(bits), from)),
             high = std::uint32_t(__shfl_sync(mask, int(bits >> 32), from));
  return std::bit_cast<T>(std::uint64_t{high} << 32 | low);
}
inline int __shfl_up_sync(unsigned, int value, int step) {
  return std::bit_cast<int>(exchange(std::bit_cast<float>(value), [&](const auto& lanes, unsigned lane) {
    return lanes[lane >= unsigned(step) ? lane - step : lane];
  }));
}
inline int __shfl_xor_sync(unsigned mask, int value, int step) {
  return std::bit_cast<int>(__shfl_xor_sync(mask, std::bit_cast<float>(value), step));
}
inline std::uint32_t __shfl_xor_sync(unsigned mask, std::uint32_t value, int step) {
  return std::bit_cast<std::uint32_t>(__shfl_xor_sync(mask, std::bit_cast<float>(value), step));
}
inline unsigned __ballot_sync(unsigned, int value) {
  return exchange(value ? 1.f : 0.f, [](const auto& lanes, unsigned) {
    unsigned all = 0;
    for (unsigned i = 0; i < 32; ++i) all |= unsigned(lanes[i] > 0) << i;
    return all;
  });
}
inline int __ffs(int value) { return __builtin_ffs(value); }
inline std::uint32_t __funnelshift_lc(std::uint32_t, std::uint32_t high, int count) {
  return count >= 32 ? 0 : high << count;
}
inline float __fdividef(float a, float b) { return a / b; }
inline int atomicAdd(int* to, int value) { return std::atomic_ref(*to).fetch_add(value); }
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, value) == ~0u; }
inline int __any_sync(unsigned mask, int value) { return !__all_sync(mask, !value); }
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
inline int __syncthreads_or(int value) {
  static std::atomic<int> any[2];
  static on_cpu::OfThread<unsigned> calls;
  std::atomic<int>& now = any[calls.mine()++ % 2];
  if (value) now = 1;
  __syncthreads();
  const int result = now;
  __syncthreads();
  if (threadIdx.x == 0) now = 0;  // read again two calls from now, behind another barrier
  return result;
}
inline std::uint32_t __cvta_generic_to_shared(const void* pointer) {
  return on_cpu::to_shared_address(pointer);
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
