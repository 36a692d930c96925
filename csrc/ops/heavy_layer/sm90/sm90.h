// SPDX-License-Identifier: Apache-2.0
// heavy_layer's GEMMs on Hopper with our own kernels. They serve problems of about a wave of tiles or less, where
// cuBLAS and the gaps between launches take longer. Operands start at multiples of 16
// bytes; their addresses need only be known for the launch.
#pragma once

#include <cstdint>

#include "ops/element_type.h"
#include "ops/heavy_layer/heavy_layer.h"

namespace plab::ops {

// Y = tanh(X M + b), with M given as its transpose.
struct ProductTanhParams {
  const void* x;
  const void* m_transposed;
  const void* b;
  void* y;
  int64_t rows, d;
  ElementType type;   // fp32 is multiplied as TF32
  bool follows_fold;  // the previous launch was launch_fold(); this one may start before its end
};

// W23 = W2 W3, and the transpose of M = W1 W23.
struct FoldParams {
  const void* w1;
  const void* w2;
  const void* w3;
  void* w23;
  void* m_transposed;
  int64_t d;
  ElementType type;
};

// H1 = X W1, H2 = H1 W2 and, where y is not null, Y = tanh(H2 W3 + b).
struct ChainParams {
  const void* x;
  const void* w1;
  const void* w2;
  const void* w3;
  const void* b;
  void* h1;
  void* h2;
  void* y;
  int64_t rows, d;
  ElementType type;
};

// A backward after G.
//
//             made, by the forward                        own
//     folded  W23 and M, which may lie as its transpose   dM = X^T G, which is there; a workspace of d x d
//     chain   H1 and H2                                   two workspaces of rows x d
struct OwnBackwardParams {
  const void* x;
  const void* w1;
  const void* w2;
  const void* w3;
  const void* g;
  const void* made[2];
  bool m_is_transposed;
  void* own[2];
  const float* partial;  // as in TanhBackwardParams: sums that make db
  void* dx;
  void* dw1;
  void* dw2;
  void* dw3;
  void* db;
  int64_t rows, d;
  ElementType type;
};

// Whether this GPU and this problem are better served by one kernel for the product, the bias and tanh than
// by torch's product and launch_bias_tanh.
bool fuses_product(int64_t rows, int64_t d, ElementType type, bool tf32);
void launch_product_tanh(const ProductTanhParams& params, cudaStream_t stream);

// 16-bit problems; whether the launches below serve it.
bool has_small_products(int64_t rows, int64_t d, ElementType type);
void launch_fold(const FoldParams& params, cudaStream_t stream);
void launch_folded_backward(const OwnBackwardParams& params, cudaStream_t stream);
void launch_chain(const ChainParams& params, cudaStream_t stream);
void launch_chain_backward(const OwnBackwardParams& params, cudaStream_t stream);

}  // namespace plab::ops
