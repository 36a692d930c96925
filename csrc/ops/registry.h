// SPDX-License-Identifier: Apache-2.0
// Every op of the library: one line per op.
#pragma once

#include <array>
#include <span>

#include "torch_abi/library.h"

namespace plab::ops {

std::span<const torch_abi::OpDef> attention_ops();
std::span<const torch_abi::OpDef> heavy_layer_ops();
std::span<const torch_abi::OpDef> ladder_attention_ops();
std::span<const torch_abi::OpDef> layer_norm_gelu_ops();

inline std::span<const std::span<const torch_abi::OpDef>> op_groups() {
  static const std::array groups = {
      attention_ops(),
      heavy_layer_ops(),
      ladder_attention_ops(),
      layer_norm_gelu_ops(),
  };
  return groups;
}

}  // namespace plab::ops
