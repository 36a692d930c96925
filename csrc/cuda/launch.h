// SPDX-License-Identifier: Apache-2.0
// The host side of launches: error checks that throw, grid arithmetic, device attributes read once per
// device.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace plab {

/// A CUDA call failed. The text names the call, CUDA's reason and the place.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace plab

namespace plab::cuda {

/// Out of line of the macro, so that a check costs one compare in the caller.
[[noreturn]] inline void throw_error(cudaError_t status, const char* what, const char* file, int line) {
  std::string hint;
  if (status == cudaErrorNoKernelImageForDevice) {
    hint =
        " (this build has no code for this GPU: rebuild with TORCH_CUDA_ARCH_LIST set to its compute "
        "capability)";
  }
  throw Error(std::string(what) + " failed: " + cudaGetErrorString(status) + hint + " [" + file + ":" +
              std::to_string(line) + "]");
}

/// Rounded up; for positive operands.
template <class Int>
constexpr Int ceil_div(Int a, Int b) {
  return (a + b - 1) / b;
}

constexpr int kMaxDevices = 64;

/// The current device, for caches indexed by device.
int inline current_device();

/// One attribute of the current device. Asked once per device: the query costs microseconds, a launch cannot
/// afford it.
template <cudaDeviceAttr kAttribute>
int device_attribute();

}  // namespace plab::cuda

#define PLAB_CUDA_CHECK(call)                                                                          \
  do {                                                                                                 \
    const cudaError_t plab_status = (call);                                                            \
    if (plab_status != cudaSuccess) ::plab::cuda::throw_error(plab_status, #call, __FILE__, __LINE__); \
  } while (false)

/// Directly after each launch. cudaGetLastError also clears the error, so that it is not blamed on the next
/// call.
#define PLAB_CHECK_LAUNCH() PLAB_CUDA_CHECK(cudaGetLastError())

namespace plab::cuda {

int inline current_device() {
  int device = 0;
  PLAB_CUDA_CHECK(cudaGetDevice(&device));
  if (device >= kMaxDevices)
    throw Error("device index " + std::to_string(device) + " is above the supported 63");
  return device;
}

template <cudaDeviceAttr kAttribute>
int device_attribute() {
  static std::array<std::atomic<int>, kMaxDevices> cached{};  // value + 1; 0 = not read yet
  std::atomic<int>& slot = cached[current_device()];
  int known = slot.load(std::memory_order_relaxed);
  if (known == 0) {
    int value = 0;
    PLAB_CUDA_CHECK(cudaDeviceGetAttribute(&value, kAttribute, current_device()));
    known = value + 1;
    slot.store(known, std::memory_order_relaxed);
  }
  return known - 1;
}

inline int sm_count() { return device_attribute<cudaDevAttrMultiProcessorCount>(); }

/// The largest dynamic shared memory of a block.
inline int max_shared_bytes() { return device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(); }

/// Blocks of one kernel that are resident on an SM at once. Asked once per device and block size, for which
/// `shared_bytes` is always the same; the first call also lets the kernel use as much dynamic shared memory
/// as a block can have.
template <auto kKernel>
int blocks_per_sm(int threads, int shared_bytes) {
  constexpr int kSizes = 33;  // warps per block: 0 to 32
  static std::array<std::array<std::atomic<int>, kSizes>, kMaxDevices> cached{};
  std::atomic<int>& slot = cached[current_device()][threads / 32];
  int known = slot.load(std::memory_order_relaxed);
  if (known == 0) {
    if (shared_bytes > 0) {
      cudaFuncAttributes attributes;
      PLAB_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kKernel));
      const int dynamic = max_shared_bytes() - static_cast<int>(attributes.sharedSizeBytes);
      PLAB_CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
    }
    PLAB_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&known, kKernel, threads, shared_bytes));
    if (known == 0) throw Error("a block of " + std::to_string(threads) + " threads does not fit this GPU");
    slot.store(known, std::memory_order_relaxed);
  }
  return known;
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
