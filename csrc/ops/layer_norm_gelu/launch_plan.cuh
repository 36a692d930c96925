// SPDX-License-Identifier: Apache-2.0
// From run-time facts (element type, GELU form, row plan) to compile-time types, for forward and backward
// alike.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/reduce.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;

/// Whether every row of every matrix starts at a multiple of 16 bytes.
inline bool aligned(std::initializer_list<const void*> pointers, std::initializer_list<int64_t> row_strides,
                    int element_bytes) {
  uint64_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uint64_t>(pointer);
  for (const int64_t stride : row_strides) bits |= static_cast<uint64_t>(stride * element_bytes);
  return bits % cuda::kVecBytes == 0;
}

template <class Function>
decltype(auto) dispatch_form(GeluForm form, Function&& function) {
  return form == GeluForm::kErf ? function(Constant<GeluForm::kErf>{})
                                : function(Constant<GeluForm::kTanh>{});
}

/// Calls function(Tag<Tile>, Tag<Group>) for a plan whose row fits registers (plan.vecs > 0).
template <class Element, int kMaxVecs, class Function>
void dispatch_tile(const RowPlan& plan, Function&& function) {
  const auto with_vecs = [&]<int kVecs, Access kAccess>() {
    using Tile = RowTile<Element, kVecs, kAccess>;
    if constexpr (kVecs <= 4) {  // what a warp can cover with 8 vectors a thread, two warps cover with 4
      if (plan.threads == cuda::kWarpSize) return function(Tag<Tile>{}, Tag<cuda::WarpGroup>{});
    }
    return function(Tag<Tile>{}, Tag<cuda::BlockGroup>{});
  };
  if (plan.access == Access::kScalar) return with_vecs.template operator()<1, Access::kScalar>();
  if (plan.access == Access::kVector) {
    if (plan.vecs == 1) return with_vecs.template operator()<1, Access::kVector>();
    return with_vecs.template operator()<kMaxVecs, Access::kVector>();
  }
  if (plan.vecs == 1) return with_vecs.template operator()<1, Access::kExact>();
  if (plan.vecs == 2) return with_vecs.template operator()<2, Access::kExact>();
  if constexpr (kMaxVecs >= 4) {
    if (plan.vecs == 3) return with_vecs.template operator()<3, Access::kExact>();
    if (plan.vecs == 4) return with_vecs.template operator()<4, Access::kExact>();
  }
  if constexpr (kMaxVecs > 4) return with_vecs.template operator()<kMaxVecs, Access::kExact>();
}

}  // namespace plab::ops::layer_norm_gelu
