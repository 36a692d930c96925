// SPDX-License-Identifier: Apache-2.0
// y = gelu(layer_norm(x) * weight + bias) over the last dimension, forward and backward.
//
// Contract of every function below (layer_norm_gelu.cpp checks it): x and dy are matrices of `rows` x `cols`
// whose rows are contiguous and lie `*_row_stride` elements apart; everything else is contiguous. weight and
// bias have the element type of x. Pointers need only the alignment of their elements. cols >= 1; rows may be
// 0. Sums are kept in fp32, for fp64 in fp64. mean and rstd are fp32, for fp64 inputs fp64, and are saved for
// the backward.
#pragma once

#include <cstdint>

#include "cuda/types.h"
#include "ops/element_type.h"

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::ops::layer_norm_gelu {

using cuda::GeluForm;

struct ForwardParams {
  const void* x;
  const void* weight;
  const void* bias;  // null: zero
  void* y;
  void* mean;
  void* rstd;
  const void* residual;  // null: no residual and no sum
  void* sum;             // x + residual, rounded to the element type: what is normalised
  int64_t rows;
  int64_t cols;
  int64_t x_row_stride;
  int64_t residual_row_stride;
  double eps;
  GeluForm form;
  ElementType element;
};

struct BackwardParams {
  const void* dy;
  const void* x;
  const void* weight;
  const void* bias;  // null: zero
  const void* mean;
  const void* rstd;
  const void* dsum;  // null: zero; the gradient of the sum from elsewhere, added to dx
  void* dx;
  void* dweight;
  void* dbias;
  /// Workspace: `partial_rows` rows of 2 * cols sums (dweight's, then dbias's), of the type of mean. Need not
  /// be initialised.
  void* partial;
  int64_t partial_rows;
  int64_t rows;
  int64_t cols;
  int64_t x_row_stride;
  int64_t dy_row_stride;
  int64_t dsum_row_stride;
  GeluForm form;
  ElementType element;
};

/// Which rows a group of threads owns, and in which order.
struct RowOrder {
  int64_t rows_per_group;
  bool interleaved;      // group g has rows g, g + groups, ... instead of consecutive rows
  int64_t groups_ahead;  // the group that starts next is likely to be this number of groups ahead
  float inverse_cols;
};

/// How rows are packed into steps (portable/packed.cuh).
struct Packing {
  int cols;
  int rows_per_bundle, vecs_per_bundle;  // the fewest rows that begin and end at 16 bytes, and their vectors
  int rows;                              // of a step: whole bundles, at most as many as a block has threads
  int lanes_per_row_log2;                // of a warp, that add up a row's sums
  float inverse_cols;
  int64_t steps;  // of the matrix
};

/// A CUDA launch, planned before anything runs.
struct Plan {
  const void* kernel = nullptr;  // null: no rows, or rows that the kernels of this folder do not support
  int64_t blocks = 0;
  int threads = 0;  // of a block
  int shared_bytes = 0;
  int cluster = 0;  // blocks of a cluster; 0: the kernel uses no clusters
  /// The kernel's argument after the params. kInverseCols: order.inverse_cols alone.
  enum class Argument { kOrder, kInverseCols, kPacking } argument = Argument::kOrder;
  RowOrder order{};
  Packing packing{};
  int64_t workspace_rows = 0;  // what BackwardParams::partial must have
  /// A second kernel, of the params alone, that writes the workspace, where the first one does not.
  const void* sums_kernel = nullptr;
  int64_t sums_blocks = 0;
  int sums_threads = 0;
};

/// dweight and dbias are sums over all rows. Each piece of the work writes a partial sum to the workspace, and the
/// partial sums are added in a fixed order, so the bits are the same in every run. A few rows need no workspace.
int64_t backward_workspace_rows_cpu(const BackwardParams& params);
void forward_cpu(const ForwardParams& params);
void backward_cpu(const BackwardParams& params);

/// Needs params.partial for the launch only.
Plan plan_backward(const BackwardParams& params);
void launch_forward(const ForwardParams& params, cudaStream_t stream);
void launch_backward(const Plan& plan, const BackwardParams& params, cudaStream_t stream);

}  // namespace plab::ops::layer_norm_gelu
