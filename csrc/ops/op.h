// SPDX-License-Identifier: Apache-2.0
// What the host file of every op starts with: tensors, boxing, checks. README.md here walks through one op.
#pragma once

#include <span>

#include "ops/element_type.h"
#include "torch_abi/aten.h"
#include "torch_abi/box.h"
#include "torch_abi/check.h"
#include "torch_abi/device.h"
#include "torch_abi/library.h"
#include "torch_abi/parallel.h"
#include "torch_abi/tensor.h"

namespace plab::ops {

using torch_abi::Box;
using torch_abi::CudaScope;
using torch_abi::Dtype;
using torch_abi::OpDef;
using torch_abi::Tensor;

// The element type of a tensor, or an error with the dtypes that are supported. CUDA kernels exist for three of
// them.
inline ElementType element_type(const char* op, const Tensor& tensor) {
  const Dtype dtype = tensor.dtype();
  const bool cuda = tensor.device().is_cuda();
  if (dtype == Dtype::kFloat32) return ElementType::kFloat32;
  if (dtype == Dtype::kBFloat16) return ElementType::kBFloat16;
  if (dtype == Dtype::kFloat16) return ElementType::kFloat16;
  if (dtype == Dtype::kFloat64 && !cuda) return ElementType::kFloat64;
  torch_abi::throw_value_error(op, ": dtype ", torch_abi::name(dtype), " is not supported on ",
                               cuda ? "CUDA" : "the CPU", "; expected float32, bfloat16",
                               cuda ? " or float16" : ", float16 or float64");
}

}  // namespace plab::ops
