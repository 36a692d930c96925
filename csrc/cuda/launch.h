// SPDX-License-Identifier: Apache-2.0
// The host side of launches: error checks that throw, grid arithmetic, device attributes read once per
// device. nvcc reads what this file includes five times for each .cu file; so that is little, and the code that
// needs more is in launch.cpp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace plab::cuda {

/// Throws plab::Error (cuda/error.h) with a text that is written as printf writes it.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Out of line of the macro, so that a check costs one compare in the caller.
[[noreturn]] void throw_error(cudaError_t status, const char* what, const char* file, int line);

/// Rounded up; for positive operands.
template <class Int>
constexpr Int ceil_div(Int a, Int b) {
  return (a + b - 1) / b;
}

/// As std::min and std::max, without <algorithm>, which takes nvcc as long as cuda_runtime.h.
template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

constexpr int kMaxDevices = 64;

/// The current device, for caches indexed by device.
int current_device();

/// One attribute of the current device. Asked once per device: the query costs microseconds, a launch cannot
/// afford it.
int device_attribute(cudaDeviceAttr attribute);

inline int sm_count() { return device_attribute(cudaDevAttrMultiProcessorCount); }

/// The largest dynamic shared memory of a block.
inline int max_shared_bytes() { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

/// One number per device and per warps in a block (0 to 32), asked for once; zero until then. Only launch.cpp
/// accesses it, atomically.
struct PerBlockSize {
  int known[kMaxDevices][33];
};
int blocks_per_sm(const void* kernel, int threads, int shared_bytes, PerBlockSize& cache);
/// 0 where such a cluster does not fit.
int clusters_on_device(const void* kernel, int blocks, int threads, int shared_bytes, PerBlockSize& cache);

/// Blocks of one kernel that are resident on an SM at once. Asked once per device, block size and `which`, for which
/// `shared_bytes` is always the same; the first call also lets the kernel use as much dynamic shared memory
/// as a block can have.
template <auto kKernel>
int blocks_per_sm(int threads, int shared_bytes, bool which = false) {
  static PerBlockSize caches[2];
  return blocks_per_sm(reinterpret_cast<const void*>(kKernel), threads, shared_bytes, caches[which]);
}

/// Clusters of `blocks` blocks of one kernel that are resident at once; `blocks` is always the same for a cache.
/// Clusters do not fill the GPU: the blocks of a cluster must share a GPC. The first call also lets the kernel
/// have such clusters, and as much dynamic shared memory as a block can have.
template <auto kKernel>
int clusters_on_device(int blocks, int threads, int shared_bytes, bool which = false) {
  static PerBlockSize caches[2];
  const int clusters = clusters_on_device(reinterpret_cast<const void*>(kKernel), blocks, threads,
                                          shared_bytes, caches[which]);
  if (clusters == 0) fail("a cluster of blocks of %d threads does not fit", threads);
  return clusters;
}

/// The same for clusters of 1 to 16 blocks, whose number may differ from call to call. 0 where they do not fit.
template <auto kKernel>
int clusters_of_any_size(int blocks, int threads, int shared_bytes) {
  static PerBlockSize of_blocks[17];
  if (blocks == 1) {
    return blocks_per_sm(reinterpret_cast<const void*>(kKernel), threads, shared_bytes, of_blocks[1]) *
           sm_count();
  }
  return clusters_on_device(reinterpret_cast<const void*>(kKernel), blocks, threads, shared_bytes,
                            of_blocks[blocks]);
}

/// How `rows` are cut into runs for the groups of a grid: `waves` times as many groups as are resident at
/// once, or fewer, longer runs where that leaves none over.
struct RowRuns {
  std::int64_t rows_per_group;
  std::int64_t groups;
};

inline RowRuns cut_rows(std::int64_t rows, std::int64_t resident_groups, int waves) {
  const std::int64_t length = ceil_div(rows, resident_groups * waves);
  return {length, ceil_div(rows, length)};
}

}  // namespace plab::cuda

#define PLAB_CUDA_CHECK(call)                                                                          \
  do {                                                                                                 \
    const cudaError_t plab_status = (call);                                                            \
    if (plab_status != cudaSuccess) ::plab::cuda::throw_error(plab_status, #call, __FILE__, __LINE__); \
  } while (false)

/// Directly after each launch. cudaGetLastError also clears the error, so that it is not blamed on the next
/// call.
#define PLAB_CHECK_LAUNCH() PLAB_CUDA_CHECK(cudaGetLastError())
