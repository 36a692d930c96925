// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/plan.h"
#include "ops/element_type.h"

// Scaled dot-product attention, O = softmax(mask(Q K^T scale)) V, forward and backward, without ever storing
// the score matrix. The structs below are the whole contract between the checked host op (attention.cpp) and
// the kernels: raw pointers, strides, sizes. Everything here is already validated; kernels assume it.
//
//   visible(i, j)   i + shift - window_left <= j <= i + shift + window_right, with shift = k_len - q_len: the
//                   last query sees the last key ("bottom-right"). A negative window is unbounded; causal is
//                   window_right = 0.
//   softcap c > 0   scores become c tanh(score / c).
//   sink            one logit per head that joins the softmax's sum and has no value.
//   LSE             ln of the softmax's sum, sink included; -inf (and O = 0, gradients 0) where nothing is
//                   visible.
namespace plab::ops::attention {

// A (batch, row, head, head_dim) tensor in any layout whose last dimension is contiguous. Strides count
// elements.
struct View {
  void* data;
  int64_t batch, row, head;
};

struct Problem {
  ElementType element;
  int batch, heads, kv_heads;   // heads % kv_heads == 0; query head h reads key head h / (heads / kv_heads)
  int head_dim, head_dim_v;     // of q and k; of v and out
  int64_t q_len, k_len;         // rows per sequence; with cu_seqlens: rows of all sequences together
  const int32_t* cu_seqlens_q;  // null, or batch + 1 row offsets: sequence b owns rows [cu[b], cu[b + 1])
  const int32_t* cu_seqlens_k;  // null if and only if cu_seqlens_q is null
  int64_t window_left, window_right;  // negative: unbounded
  double scale, softcap;              // softcap 0: off
  const void* sink;                   // null, or one logit per head, of LSE's type
  // Rows behind a sequence's last key exist and may hold anything: with offsets, and in a cache.
  bool stale_keys = false;

  // The columns that a kernel for both must have.
  constexpr int widest() const { return head_dim > head_dim_v ? head_dim : head_dim_v; }
};

// Statistics of a query row: (batch, heads, q_len), or (heads, rows) with cu_seqlens. Rows are contiguous.
struct RowLayout {
  int64_t batch, head;
};

// A cache of keys, for flash_attention_with_cache: FwdParams' k and v are then the cache, their lengths are data.
// Its rows lie in pages, in any order, or one behind the other for each sequence. Problem::k_len is what the
// sequences have room for; with cu_seqlens_q, cu_seqlens_k is the same pointer and says nothing.
struct KeyCache {
  const int32_t* lengths;  // (batch): keys in the cache before this call; null: k_len each
  const int32_t* pages;  // null, or (batch, pages of a sequence): numbers of pages; View::batch strides pages
  int64_t pages_stride;
  int page_count, page_size;  // without pages: sequences, and the room of each
  int capacity;               // keys that a sequence has room for
  int new_rows;       // keys that this call adds to each sequence; kAsQueries: as many as it has query rows
  View new_k, new_v;  // (batch, new_rows, kv_heads, head_dim); with cu_seqlens_q (rows, kv_heads, head_dim)
  static constexpr int kAsQueries = -1;
};

// Which keys a tile of queries sees, in blocks of 128: a list of those in which it sees any, at least one. For each 64
// of the tile's rows a block is seen whole (kAll), not at all (kNone), or as `bits` say, which begin with that number.
struct BlockMask {
  struct Block {
    int32_t number, parts[3];
  };
  static constexpr int kKeys = 128, kRows = 64, kAll = -1, kNone = -2;
  const int32_t* counts;          // (batch, heads, tiles); null: no such mask
  const Block* blocks;            // (batch, heads, tiles, most)
  const uint32_t* bits;           // (parts, kRows, kKeys / 32)
  int batch_stride, head_stride;  // in tiles; 0 where all of them see the same
  int most;
};

struct FwdParams {
  Problem problem;
  View q, k, v, out;
  void* lse;  // double where the tensors are, float otherwise
  RowLayout rows;
  int32_t* tile_counter = nullptr;  // workspace, CUDA only: the tile scheduler's next tile, or null
  KeyCache cache{};
  BlockMask mask{};
};

struct BwdParams {
  Problem problem;
  View q, k, v, out, dout, dq, dk, dv;
  const void* lse;   // lse, dlse, lse_log2 and delta have the type and layout of the forward's lse
  const void* dlse;  // null: the LSE output has no gradient
  void* lse_log2;  // workspace, CUDA only: LSE log2(e), +inf where LSE is -inf, so that exp2(score - it) is 0
  void* delta;     // workspace: rowsum(dO O) - dLSE
  RowLayout rows;
  void* dsink;  // null, or one value per head, of LSE's type
  bool deterministic;
  float* dq_accum;  // workspace, CUDA only: the fp32 accumulator of dQ, or null
};

using FwdPlan = Plan<FwdParams>;
using BwdPlan = Plan<BwdParams>;

// CUDA, on the current device: kBFloat16 and kFloat16; head dims % 8 == 0 and <= 256; every base pointer
// 16-byte aligned and every stride a multiple of 8 elements; fewer than 2^30 rows in a sequence. Empty axes:
// no query rows, nothing to launch; no key rows, O is 0. Compute capability 8.0 or newer. Planning uses
// everything except the workspace pointers.
FwdPlan plan_fwd(const FwdParams& params);
BwdPlan plan_bwd(const BwdParams& params);

// The forward whose keys are in params.cache; compute capability 9.0. params.k and params.v may be written.
FwdPlan plan_fwd_with_cache(const FwdParams& params);

// The forward under params.mask, whose tiles have mask_tile_rows(head_dim) rows; compute capability 9.0. The keys are
// told as a cache without lengths and pages. No windows, no cu_seqlens.
FwdPlan plan_fwd_with_mask(const FwdParams& params);
constexpr int mask_tile_rows(int head_dim) { return head_dim <= 64 ? 192 : 128; }

}  // namespace plab::ops::attention
