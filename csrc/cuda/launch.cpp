// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "cuda/error.h"

namespace plab::cuda {
namespace {

/// The cached number, or what ask() returns. Several threads may ask at once; they get the same answer.
template <class Ask>
int known_or(int& slot, Ask&& ask) {
  std::atomic_ref<int> cached(slot);
  int known = cached.load(std::memory_order_relaxed);
  if (known == 0) {
    known = ask();
    cached.store(known, std::memory_order_relaxed);
  }
  return known;
}

// Lets a kernel use as much dynamic shared memory as a block can have.
void allow_shared_memory(const void* kernel) {
  cudaFuncAttributes attributes;
  PLAB_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const int dynamic = max_shared_bytes() - static_cast<int>(attributes.sharedSizeBytes);
  PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, dynamic));
}

}  // namespace

void fail(const char* format, ...) {
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  throw Error(text);
}

void throw_error(cudaError_t status, const char* what, const char* file, int line) {
  std::string hint;
  if (status == cudaErrorNoKernelImageForDevice) {
    hint =
        " (this build has no code for this GPU: rebuild with TORCH_CUDA_ARCH_LIST set to its compute "
        "capability)";
  }
  throw Error(std::string(what) + " failed: " + cudaGetErrorString(status) + hint + " [" + file + ":" +
              std::to_string(line) + "]");
}

int current_device() {
  int device = 0;
  PLAB_CUDA_CHECK(cudaGetDevice(&device));
  if (device >= kMaxDevices) fail("device index %d is above the supported 63", device);
  return device;
}

int device_attribute(cudaDeviceAttr attribute) {
  static int plus_one[kMaxDevices][cudaDevAttrMax];  // an attribute may be zero
  const int device = current_device();
  return known_or(plus_one[device][attribute],
                  [&] {
                    int value = 0;
                    PLAB_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
                    return value + 1;
                  }) -
         1;
}

int blocks_per_sm(const void* kernel, int threads, int shared_bytes, PerBlockSize& cache) {
  return known_or(cache.known[current_device()][threads / 32], [&] {
    if (shared_bytes > 0) allow_shared_memory(kernel);
    int blocks = 0;
    PLAB_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
    if (blocks == 0) fail("a block of %d threads does not fit this GPU", threads);
    return blocks;
  });
}

int clusters_on_device(const void* kernel, int blocks, int threads, int shared_bytes, PerBlockSize& cache) {
  return known_or(cache.known[current_device()][threads / 32], [&] {
    if (shared_bytes > 0) allow_shared_memory(kernel);
    if (blocks > 8)  // what every GPU with clusters has
      PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    PLAB_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
  });
}

}  // namespace plab::cuda
