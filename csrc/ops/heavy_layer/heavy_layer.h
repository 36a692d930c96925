// SPDX-License-Identifier: Apache-2.0
// heavy_layer: Y = tanh(X W1 W2 W3 + b). X is rows x d, the weights are d x d, b has d elements; everything
// is contiguous and of one element type. heavy_layer.cpp checks that, the functions below assume it.
#pragma once

#include <cstdint>

#include "ops/element_type.h"

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::ops {

struct HeavyLayerSlowParams {
  const void* x;
  const void* w1;
  const void* w2;
  const void* w3;
  const void* b;
  void* y;
  int64_t rows, d;
  ElementType type;
};

// In place: Z becomes tanh(Z + b).
struct BiasTanhParams {
  void* z;
  const void* b;
  int64_t rows, d;
  ElementType type;
};

// G = dY (1 - Y^2), and db, the sum of G over the rows. g_is_transposed: g is d x rows.
struct TanhBackwardParams {
  const void* dy;
  const void* y;
  void* g;
  void* db;
  float* partial;  // CUDA only: tanh_backward_chunks(rows) x d sums, or null where there is one chunk
  int64_t rows, d;
  ElementType type;
  bool g_is_transposed = false;  // CUDA and fp32 only
};

// C = A B of d x d matrices in fp32.
struct SquareProductParams {
  const float* a;
  const float* b;
  float* c;
  int64_t d;
};

// Sums over rows are computed in chunks of fixed size. So equal inputs give equal bits on any GPU and with any
// number of threads, and rounding errors do not accumulate over all rows.
constexpr int64_t kChunkRows = 64;
constexpr int64_t tanh_backward_chunks(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// The slow CUDA kernel holds two rows in shared memory and has a block per row; see slow.cu.
constexpr int64_t kSlowMaxWidth = 6144;
constexpr int64_t kSlowMaxRows = (int64_t{1} << 31) - 1;

void heavy_layer_slow_cpu(const HeavyLayerSlowParams& params);
void bias_tanh_cpu(const BiasTanhParams& params);
void tanh_backward_cpu(const TanhBackwardParams& params);

void launch_heavy_layer_slow(const HeavyLayerSlowParams& params, cudaStream_t stream);
void launch_bias_tanh(const BiasTanhParams& params, cudaStream_t stream);

// For float32 without TF32; operands start at multiples of 16 bytes.
bool fits_square_product(int64_t d);
void launch_square_product(const SquareProductParams& params, cudaStream_t stream);
// G, and db. If `partial` is given, its partial sums instead of db, which launch_sum_chunks adds.
void launch_tanh_backward(const TanhBackwardParams& params, cudaStream_t stream);
void launch_sum_chunks(const TanhBackwardParams& params, cudaStream_t stream);

}  // namespace plab::ops
