// SPDX-License-Identifier: Apache-2.0
// Just enough of CUDA to run a kernel's source on the CPU, one block after the other: every thread of a block
// is a thread here, __syncthreads and shuffles are barriers. It proves indexing, reductions and tails where
// there is no GPU, and under ThreadSanitizer that shared memory is synchronised; it says nothing about speed
// or about the PTX behind cuda/ptx.
//
// Kernels write `static __shared__` for static and `extern __shared__ float4 shared[]` for dynamic shared
// memory: without the keyword, both mean the right thing here.
#pragma once

#include <vector_functions.h>
#include <vector_types.h>

#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

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
inline thread_local Index threadIdx, blockIdx;
inline Index blockDim, gridDim;

namespace on_cpu {

inline std::unique_ptr<std::barrier<>> block;
inline std::vector<std::unique_ptr<std::barrier<>>> warps;
inline float lanes[32][32];

/// Runs `kernel` as a grid.
template <class Kernel>
void launch(unsigned blocks, unsigned threads, Kernel&& kernel) {
  gridDim.x = blocks, blockDim.x = threads;
  block = std::make_unique<std::barrier<>>(threads);
  warps.clear();
  for (unsigned warp = 0; warp < threads / 32; ++warp) warps.push_back(std::make_unique<std::barrier<>>(32));
  std::vector<std::thread> all;
  for (unsigned thread = 0; thread < threads; ++thread) {
    all.emplace_back([&, thread] {
      threadIdx.x = thread;
      for (unsigned b = 0; b < blocks; ++b) {
        blockIdx.x = b;
        kernel();
        block->arrive_and_wait();
      }
    });
  }
  for (std::thread& one : all) one.join();
}

}  // namespace on_cpu

inline void __syncthreads() { on_cpu::block->arrive_and_wait(); }
inline void __syncwarp() { on_cpu::warps[threadIdx.x / 32]->arrive_and_wait(); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  on_cpu::lanes[warp][lane] = value;
  __syncwarp();
  const float other = on_cpu::lanes[warp][lane ^ mask];
  __syncwarp();
  return other;
}
inline float __shfl_sync(unsigned, float value, int from) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  on_cpu::lanes[warp][lane] = value;
  __syncwarp();
  const float other = on_cpu::lanes[warp][from % 32];
  __syncwarp();
  return other;
}
inline int __all_sync(unsigned mask, int value) {
  int all = value;
  for (int lane = 1; lane < 32; lane *= 2) all = all && __shfl_xor_sync(mask, all ? 1.0f : 0.0f, lane) > 0;
  return all;
}
template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
inline float rsqrtf(float v) { return 1 / std::sqrt(v); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
