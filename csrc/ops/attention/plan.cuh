// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/launch.h"
#include "ops/attention/plan.h"

namespace plab::ops::attention {

// Launches a kernel as its plan says.
template <class Params, class... Args>
void launch_kernel(void (*kernel)(Args...), const KernelLaunch<Params>& how, cudaStream_t stream,
                   const std::type_identity_t<Args>&... args) {
  if (how.shared_bytes > 0)
    PLAB_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes));
  kernel<<<static_cast<unsigned>(how.blocks), how.threads, how.shared_bytes, stream>>>(args...);
  PLAB_CHECK_LAUNCH();
}

// The same for a kernel that may start while the one before it still runs (cuda/ptx/dependent_launch.cuh), which saves
// the time between the two.
template <class Params, class... Args>
void launch_early(void (*kernel)(Args...), const KernelLaunch<Params>& how, cudaStream_t stream,
                  const std::type_identity_t<Args>&... args) {
  if (how.shared_bytes > 0)
    PLAB_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(how.blocks));
  launch.blockDim = dim3(static_cast<unsigned>(how.threads));
  launch.dynamicSmemBytes = static_cast<size_t>(how.shared_bytes);
  launch.stream = stream;
  launch.attrs = &early;
  launch.numAttrs = 1;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, args...));
}

}  // namespace plab::ops::attention
