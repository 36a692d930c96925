// SPDX-License-Identifier: Apache-2.0
// What the kernels of the ladder share.
#pragma once

#include "cuda/launch.h"
#include "cuda/vec.cuh"
#include "ops/device_types.cuh"
#include "ops/ladder_attention/ladder_attention.h"

namespace plab::ops::ladder {

using cuda::ceil_div;
using cuda::from_float;
using cuda::to_float;

constexpr int kThreads = 256;

/// Where head `index` (of batch * heads) of a tensor with `rows` rows a batch entry begins.
__device__ __forceinline__ int64_t head_offset(const Params& p, int64_t index, int64_t rows) {
  return (index / p.heads * rows * p.heads + index % p.heads) * p.head_dim;
}
/// Elements from one row of a head to the next.
__device__ __forceinline__ int64_t row_stride(const Params& p) { return p.heads * p.head_dim; }

/// Every stored row of scores becomes its probabilities; invisible keys get 0 (softmax.cu).
void launch_softmax(const Params& params, cudaStream_t stream);

}  // namespace plab::ops::ladder
