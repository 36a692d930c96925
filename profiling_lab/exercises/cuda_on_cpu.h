// SPDX-License-Identifier: Apache-2.0
// Runs a CUDA kernel on a CPU, to test what it computes where there is no GPU. Not fast, and not a profile.
//
// The threads of a block are coroutines of one CPU thread. They take turns at __syncthreads and at the exchange
// of values within a warp, blocks follow one another. cuda_build.py turns the syntax of CUDA into C++.

#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

using std::max;
using std::min;

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct float3 {
  float x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

using cudaError_t = int;
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9;
constexpr int cudaErrorLaunchFailure = 719;
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
              cudaFuncAttributePreferredSharedMemoryCarveout = 9;
constexpr int cudaDevAttrMultiProcessorCount = 16;
constexpr int cudaLimitMallocHeapSize = 2;
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };

namespace on_cpu {

constexpr unsigned kWarp = 32;
constexpr size_t kStack = 64 * 1024, kShared = 227 * 1024;

struct Thread {
  ucontext_t context;
  dim3 index;
  unsigned linear = 0;
  unsigned waits_for = 0;
  bool is_done = false, waits_for_block = false;
};

inline ucontext_t scheduler;
inline std::vector<Thread> threads;
inline std::vector<char> stacks;
inline std::vector<uint64_t> exchanged;
alignas(128) inline char dynamic_shared[kShared];
inline Thread* current = nullptr;
inline dim3 grid, block, block_index;
inline std::function<void()> body;
inline cudaError_t last_error = 0;

inline void yield() { swapcontext(&current->context, &scheduler); }

inline void wait_for_block() {
  current->waits_for_block = true;
  yield();
}

inline void wait_for_lanes(unsigned mask) {
  current->waits_for = mask | 1u << current->linear % kWarp;
  yield();
}

inline void entry() {
  body();
  current->is_done = true;
  yield();
}

// Releases the threads whose barrier is complete; those that have left the kernel count as arrived. Returns
// whether one was released.
inline bool release() {
  const auto waits = [](const Thread& one) { return one.is_done || one.waits_for_block; };
  bool is_any = false;
  if (std::all_of(threads.begin(), threads.end(), waits)) {
    for (Thread& one : threads) {
      is_any = is_any || !one.is_done;
      one.waits_for_block = false;
    }
    return is_any;
  }
  for (size_t first = 0; first < threads.size(); first += kWarp) {
    const size_t end = std::min(first + kWarp, threads.size());
    unsigned arrived = 0, released = 0;
    for (size_t i = first; i < first + kWarp; ++i) {
      arrived |= unsigned{i >= end || threads[i].is_done || threads[i].waits_for != 0} << (i - first);
    }
    for (size_t i = first; i < end; ++i) {
      const unsigned mask = threads[i].waits_for;
      released |= unsigned{mask != 0 && (mask & arrived) == mask} << (i - first);
    }
    for (size_t i = first; i < end; ++i) {
      if (released >> (i - first) & 1) {
        threads[i].waits_for = 0;
        is_any = true;
      }
    }
  }
  return is_any;
}

// Every thread runs until it waits for others, and again once they have arrived.
inline void run_block() {
  const unsigned number = block.x * block.y * block.z;
  threads.resize(number);
  stacks.resize(number * kStack);
  exchanged.assign(number, 0);
  for (unsigned i = 0; i < number; ++i) {
    Thread& one = threads[i];
    one.is_done = one.waits_for_block = false;
    one.waits_for = 0;
    one.linear = i;
    one.index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
    getcontext(&one.context);
    one.context.uc_stack.ss_sp = stacks.data() + i * kStack;
    one.context.uc_stack.ss_size = kStack;
    one.context.uc_link = nullptr;
    makecontext(&one.context, entry, 0);
  }
  do {
    for (Thread& one : threads) {
      if (!one.is_done && !one.waits_for_block && one.waits_for == 0) {
        current = &one;
        swapcontext(&scheduler, &one.context);
      }
    }
  } while (release());
  if (!std::all_of(threads.begin(), threads.end(), [](const Thread& one) { return one.is_done; })) {
    last_error = cudaErrorLaunchFailure;  // threads wait for others that never come
  }
}

template <typename Kernel>
auto launch(Kernel kernel, dim3 grid_, dim3 block_, size_t shared = 0, cudaStream_t = nullptr) {
  return [=](auto... given) {
    if (!grid_.x || !grid_.y || !grid_.z || block_.x * block_.y * block_.z > 1024 || shared > kShared) {
      last_error = cudaErrorInvalidConfiguration;
      return;
    }
    grid = grid_;
    block = block_;
    body = [=] { kernel(given...); };
    for (unsigned z = 0; z < grid.z; ++z) {
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          block_index = dim3(x, y, z);
          run_block();
        }
      }
    }
  };
}

template <typename T>
T exchange(unsigned mask, T value, unsigned from_lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  std::memcpy(&exchanged[current->linear], &value, sizeof(T));
  wait_for_lanes(mask);
  const unsigned from = current->linear / kWarp * kWarp + from_lane;
  T result = value;
  if (from < exchanged.size()) {
    std::memcpy(&result, &exchanged[from], sizeof(T));
  }
  wait_for_lanes(mask);
  return result;
}

inline unsigned lane() { return current->linear % kWarp; }

}  // namespace on_cpu

#define threadIdx (on_cpu::current->index)
#define blockIdx (on_cpu::block_index)
#define blockDim (on_cpu::block)
#define gridDim (on_cpu::grid)
#define warpSize 32
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)

inline void __syncthreads() { on_cpu::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffff) { on_cpu::wait_for_lanes(mask); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned lanes, T value, int lane, int width = 32) {
  const unsigned first = on_cpu::lane() / width * width;
  return on_cpu::exchange(lanes, value, first + static_cast<unsigned>(lane) % width);
}
template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask, int width = 32) {
  const unsigned from = on_cpu::lane() ^ mask, first = on_cpu::lane() / width * width;
  return on_cpu::exchange(lanes, value, from < first + width ? from : on_cpu::lane());
}
template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  const unsigned from = on_cpu::lane() + delta, first = on_cpu::lane() / width * width;
  return on_cpu::exchange(lanes, value, from < first + width ? from : on_cpu::lane());
}
template <typename T>
T __shfl_up_sync(unsigned lanes, T value, unsigned delta, int width = 32) {
  const unsigned first = on_cpu::lane() / width * width;
  return on_cpu::exchange(lanes, value,
                          on_cpu::lane() >= first + delta ? on_cpu::lane() - delta : on_cpu::lane());
}

template <typename T, typename U>
T atomicAdd(T* where, U value) {
  const T before = *where;
  *where += value;
  return before;
}
template <typename T>
T __ldg(const T* where) {
  return *where;
}
template <typename T>
T __ldcs(const T* where) {
  return *where;
}
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }

inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int what, int value) {
  const bool is_too_much =
      what == cudaFuncAttributeMaxDynamicSharedMemorySize && value > static_cast<int>(on_cpu::kShared);
  return is_too_much ? cudaErrorInvalidValue : cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* where, int value, size_t bytes, cudaStream_t = nullptr) {
  std::memset(where, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* where, int value, size_t bytes) {
  return cudaMemsetAsync(where, value, bytes);
}
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) {
  *value = 132;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceSetLimit(int, size_t) { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return std::exchange(on_cpu::last_error, 0); }
