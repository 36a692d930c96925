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

}  // namespace plab::ops::attention
