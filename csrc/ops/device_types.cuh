// SPDX-License-Identifier: Apache-2.0
// Maps an element type to the CUDA type with the same bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/launch.h"
#include "ops/element_type.h"

namespace plab::ops {

template <class Function>
decltype(auto) dispatch_device(ElementType type, Function&& function) {
  switch (type) {
    case ElementType::kFloat32:
      return function(Tag<float>{});
    case ElementType::kBFloat16:
      return function(Tag<__nv_bfloat16>{});
    case ElementType::kFloat16:
      return function(Tag<__half>{});
    default:
      cuda::fail("there is no CUDA kernel for float64");
  }
}

}  // namespace plab::ops
