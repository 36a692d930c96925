// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/tile_scheduler.cuh"

// What a cache of keys (attention.h) holds of a sequence, and where.
namespace plab::ops::attention {

__device__ __forceinline__ int query_rows(const Problem& p, int sequence) {
  return p.cu_seqlens_q == nullptr ? int(p.q_len) : p.cu_seqlens_q[sequence + 1] - p.cu_seqlens_q[sequence];
}

__device__ __forceinline__ int added_keys(const KeyCache& cache, const Problem& p, int sequence) {
  return cache.new_rows == KeyCache::kAsQueries ? query_rows(p, sequence) : cache.new_rows;
}

// Lengths are data, and a length with which the new keys would not fit counts as the largest one with which they
// do. More new keys than there is room for at all are not kept.
__device__ __forceinline__ int kept_keys(const KeyCache& cache, const Problem& p, int sequence) {
  return max(min(cache.lengths[sequence], cache.capacity - added_keys(cache, p, sequence)), 0);
}

__device__ __forceinline__ int cached_keys(const KeyCache& cache, const Problem& p, int sequence) {
  if (cache.lengths == nullptr) return int(p.k_len);
  return min(kept_keys(cache, p, sequence) + added_keys(cache, p, sequence), cache.capacity);
}

// In row `row` of page `page`, or of sequence `page` without pages.
struct KeyPlace {
  int page, row;
};

__device__ __forceinline__ KeyPlace place_of(const KeyCache& cache, int sequence, int key) {
  if (cache.pages == nullptr) return {sequence, key};
  const int page = int(uint32_t(key) / uint32_t(cache.page_size));
  return {cache.pages[sequence * cache.pages_stride + page], key - page * cache.page_size};
}

// Puts 16 bytes of a new key, and of its value, where key `key` of the sequence lies in the cache. The new one is
// row `row` of new_k's batch `batch`.
__device__ __forceinline__ void keep_piece(const FwdParams& p, int sequence, int key, int batch, int64_t row,
                                           int kv_head, int chunk) {
  const KeyPlace to = place_of(p.cache, sequence, key);
  const auto keep = [&](const View& from, const View& into) {
    *reinterpret_cast<uint4*>(row_pointer<uint16_t>(into, to.page, to.row, kv_head) + chunk * 8) =
        *reinterpret_cast<const uint4*>(row_pointer<const uint16_t>(from, batch, row, kv_head) + chunk * 8);
  };
  keep(p.cache.new_k, p.k);
  keep(p.cache.new_v, p.v);
}

// The rows of keys that a call adds, of all sequences together.
__host__ __device__ inline int64_t added_rows(const FwdParams& p) {
  if (p.cache.new_k.data == nullptr) return 0;
  return p.problem.cu_seqlens_q != nullptr ? p.problem.q_len : int64_t{p.problem.batch} * p.cache.new_rows;
}

// Puts the call's keys and values into the cache, a thread 16 bytes of both at a time.
__device__ inline void append_keys(const FwdParams& p, int64_t thread, int64_t threads) {
  const Problem& problem = p.problem;
  const int chunks = problem.head_dim / 8;
  const int64_t pieces = added_rows(p) * problem.kv_heads * chunks;
  for (int64_t i = thread; i < pieces; i += threads) {
    const int chunk = int(i % chunks), head = int(i / chunks % problem.kv_heads);
    int64_t row = i / chunks / problem.kv_heads, own;  // in new_k, and among the sequence's own
    int sequence = 0, batch = 0;
    if (const int32_t* cu = problem.cu_seqlens_q) {
      for (int step = 1 << 30; step > 0; step /= 2)  // the last one that begins at or before the row
        if (step <= problem.batch - sequence && cu[sequence + step] <= row) sequence += step;
      if (sequence == problem.batch) return;  // no sequence owns this row or those behind it
      own = row - cu[sequence];
    } else {
      sequence = batch = int(row / p.cache.new_rows);
      own = row -= int64_t{sequence} * p.cache.new_rows;
    }
    const int64_t key = kept_keys(p.cache, problem, sequence) + own;
    if (key < p.cache.capacity) keep_piece(p, sequence, int(key), batch, row, head, chunk);
  }
}

}  // namespace plab::ops::attention
