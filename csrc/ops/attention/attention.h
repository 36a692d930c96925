// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/element_type.h"

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

// Scaled dot-product attention, O = softmax(mask(Q Kᵀ · scale)) V, forward and backward, without ever storing
// the score matrix. The structs below are the whole contract between the checked host op (attention.cpp) and
// the kernels: raw pointers, strides, sizes. Everything here is already validated; kernels assume it.
//
//   visible(i, j)   i + shift - window_left <= j <= i + shift + window_right,  shift = k_len - q_len (the
//   last query
//                   sees the last key: "bottom-right"); a negative window is unbounded; causal is
//                   window_right = 0.
//   softcap c > 0   scores become c · tanh(score / c).
//   sink            one logit per head that joins the softmax's sum and has no value.
//   LSE             ln of the softmax's sum, sink included; -inf (and O = 0, gradients 0) where nothing is
//   visible.
namespace plab::ops::attention {

// A (batch, row, head, head_dim) tensor in any layout whose last dimension is contiguous. Strides count
// elements.
struct View {
  void* data;
  int64_t batch, row, head;
};

struct Problem {
  ElementType element;
  int batch, heads, kv_heads,
      head_dim;                 // heads % kv_heads == 0; query head h reads key head h / (heads / kv_heads)
  int64_t q_len, k_len;         // rows per sequence; with cu_seqlens: rows of all sequences together
  const int32_t* cu_seqlens_q;  // null, or batch + 1 row offsets: sequence b owns rows [cu[b], cu[b + 1])
  const int32_t* cu_seqlens_k;  // null exactly when cu_seqlens_q is
  int64_t window_left, window_right;  // negative: unbounded
  double scale, softcap;              // softcap 0: off
  const void* sink;                   // null, or one logit per head, of LSE's type
};

// Statistics of a query row: (batch, heads, q_len), or (heads, rows) with cu_seqlens. Rows are contiguous.
struct RowLayout {
  int64_t batch, head;
};

struct FwdParams {
  Problem problem;
  View q, k, v, out;
  void* lse;  // double where the tensors are, float otherwise
  RowLayout rows;
  int32_t* next_tile = nullptr;  // scratch: one counter, where attention_fwd_counts()
};

struct BwdParams {
  Problem problem;
  View q, k, v, out, dout, dq, dk, dv;
  const void* lse;   // these four have the type and layout of the forward's lse
  const void* dlse;  // null: the LSE output has no gradient
  void* lse_log2;  // scratch, CUDA only: LSE · log2(e), +inf where LSE is -inf, so that exp2(score - it) is 0
  void* delta;     // scratch: rowsum(dO · O) - dLSE
  RowLayout rows;
  void* dsink;  // null, or one value per head, of LSE's type
  bool deterministic;
  float* dq_sum;  // scratch, CUDA only: attention_bwd_needs().dq_sum floats, or null where that is 0
};

// What scratch launch_attention_bwd uses for a problem.
struct BwdNeeds {
  int64_t dq_sum;       // floats; 0 for some problems
  bool row_statistics;  // lse_log2 and delta
};

// CPU: any ElementType; sums in double where the tensors are, in float otherwise.
void attention_fwd_cpu(const FwdParams& params);
void attention_bwd_cpu(const BwdParams& params);

// CUDA: kBFloat16 and kFloat16; head_dim % 8 == 0 and <= 256; every base pointer 16-byte aligned and every
// stride a multiple of 8 elements; fewer than 2^30 rows in a sequence. Empty axes: no query rows, nothing to
// launch; no key rows, O is 0. Compute capability 8.0 or newer.
void launch_attention_fwd(const FwdParams& params, cudaStream_t stream);

// Whether the forward needs FwdParams::next_tile on the current device.
bool attention_fwd_counts(const FwdParams& params);

// On the current device; looks at the tensors and options of the params, not at their scratch.
BwdNeeds attention_bwd_needs(const BwdParams& params);
void launch_attention_bwd(const BwdParams& params, cudaStream_t stream);

// The portable path (mma.sync) on any of these GPUs, for tests that compare the paths.
void launch_attention_fwd_sm80(const FwdParams& params, cudaStream_t stream);
void launch_attention_bwd_sm80(const BwdParams& params, cudaStream_t stream);

}  // namespace plab::ops::attention
