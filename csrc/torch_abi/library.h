// SPDX-License-Identifier: Apache-2.0
// Registers ops with torch's dispatcher.
#pragma once

#include <span>
#include <string>

#include "torch_abi/abi.h"

namespace plab::torch_abi {

// One op: its schema ("name(Tensor x) -> Tensor") and its kernel, which serves CPU and CUDA tensors alike.
struct OpDef {
  const char* schema;
  BoxedKernel kernel;
};

// Defines every op in namespace `ns`, and once more as the overload "plain", and registers its kernel for CPU
// tensors and, if `cuda`, for CUDA tensors. If one fails, none is registered. `origin` is the place that
// torch names in its own errors. Returns "" or the reason for a failure.
std::string register_ops(const char* ns, std::span<const std::span<const OpDef>> groups, bool cuda,
                         const char* origin);

}  // namespace plab::torch_abi
