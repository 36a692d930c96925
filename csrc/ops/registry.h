// SPDX-License-Identifier: Apache-2.0
// Every op of the library: one line per op.
#pragma once

#include <array>
#include <span>

#include "torch_abi/library.h"

#define PLAB_OPS(OP)   \
  OP(attention)        \
  OP(heavy_layer)      \
  OP(ladder_attention) \
  OP(layer_norm_gelu)

namespace plab::ops {

#define PLAB_DECLARE(op) std::span<const torch_abi::OpDef> op##_ops();
PLAB_OPS(PLAB_DECLARE)
#undef PLAB_DECLARE

inline std::span<const std::span<const torch_abi::OpDef>> op_groups() {
#define PLAB_ENTRY(op) op##_ops(),
  static const std::array groups = {PLAB_OPS(PLAB_ENTRY)};
#undef PLAB_ENTRY
  return groups;
}

}  // namespace plab::ops
