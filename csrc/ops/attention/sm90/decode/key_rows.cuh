// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/warp_gemm.cuh"

// Where the decode kernel's keys and values lie, and how a warp copies 16 rows of them.
namespace plab::ops::attention::sm90 {

// Keys as the tensors of FwdParams: nothing else to know.
struct DenseKeys {};

template <class Config>
__device__ __forceinline__ int key_count(const DenseKeys&, const Problem& problem, int) {
  return int(problem.k_len);
}

// A tile of 16 rows from `row` on, copied by one warp. Rows from `valid` on arrive as zeros.
template <int kCols, class Element>
__device__ __forceinline__ void load_rows(uint32_t smem, const Element* row, int64_t stride, int valid,
                                          int cols) {
  constexpr int kChunks = kCols / 8, kStep = 32 / kChunks;
  const int lane = int(threadIdx.x & 31), row0 = lane / kChunks, chunk = lane % kChunks;
  const Element* source = row + row0 * stride + chunk * 8;
  const int left = chunk * 8 < cols ? valid - row0 : 0;
#pragma unroll
  for (int i = 0; i < 16 / kStep; ++i) {
    ptx::cp_async_16(smem + chunk_bytes<kCols>(row0 + i * kStep, chunk), source, i * kStep < left);
    source += kStep * stride;
  }
}

template <class Config>
__device__ __forceinline__ void load_keys(uint32_t stage, const DenseKeys&, const FwdParams& p, int batch,
                                          int kv_head, int key, int k_len) {
  using Element = typename Config::Element;
  load_rows<Config::kHeadDim>(stage, row_pointer<const Element>(p.k, batch, key, kv_head), p.k.row,
                              k_len - key, p.problem.head_dim);
  load_rows<Config::kHeadDim>(stage + Config::kBytesTile,
                              row_pointer<const Element>(p.v, batch, key, kv_head), p.v.row, k_len - key,
                              p.problem.head_dim_v);
}

template <class Config>
__device__ __forceinline__ void keep_new_keys(const DenseKeys&, const FwdParams&, int, int) {}

// Where a key is: in row `row` of page `page`, of sequence `page` without pages, or of this call's own (-1).
struct KeyPlace {
  int page, row;
};

__device__ __forceinline__ int kept_keys(const KeyCache& cache, int batch) {
  return min(max(cache.lengths[batch], 0), cache.capacity - cache.new_rows);
}

__device__ __forceinline__ KeyPlace place_of(const KeyCache& cache, int batch, int key, int kept) {
  if (key >= kept) return {-1, key - kept};
  if (cache.pages == nullptr) return {batch, key};
  const int page = key / cache.page_size;
  return {cache.pages[batch * cache.pages_stride + page], key - page * cache.page_size};
}

template <class Config>
__device__ __forceinline__ int key_count(const KeyCache& cache, const Problem&, int batch) {
  return kept_keys(cache, batch) + cache.new_rows;
}

// Lane l looks up row l % 16 of the tile. Keys that this call adds are read where they are, so no block waits
// until another has put them into the cache.
template <class Config>
__device__ __forceinline__ void load_keys(uint32_t stage, const KeyCache& cache, const FwdParams& p,
                                          int batch, int kv_head, int key, int k_len) {
  using Element = typename Config::Element;
  constexpr int kCols = Config::kHeadDim, kChunks = kCols / 8, kStep = 32 / kChunks;
  const int lane = int(threadIdx.x & 31), row0 = lane / kChunks, chunk = lane % kChunks;
  const int mine = min(key + lane % 16, k_len - 1);
  const KeyPlace place = place_of(cache, batch, mine, k_len - cache.new_rows);
  const int left = chunk * 8 < p.problem.head_dim ? k_len - key - row0 : 0;
#pragma unroll
  for (int i = 0; i < 16 / kStep; ++i) {
    const int page = __shfl_sync(~0u, place.page, row0 + i * kStep);
    const int row = __shfl_sync(~0u, place.row, row0 + i * kStep);
    const uint32_t to = stage + chunk_bytes<kCols>(row0 + i * kStep, chunk);
    const bool added = page < 0;
    const Element* k =
        row_pointer<const Element>(added ? cache.new_k : p.k, added ? batch : page, row, kv_head);
    const Element* v =
        row_pointer<const Element>(added ? cache.new_v : p.v, added ? batch : page, row, kv_head);
    ptx::cp_async_16(to, k + chunk * 8, i * kStep < left);
    ptx::cp_async_16(to + Config::kBytesTile, v + chunk * 8, i * kStep < left);
  }
}

// Puts the call's keys into the cache; by one block for each sequence and key head.
template <class Config>
__device__ __forceinline__ void keep_new_keys(const KeyCache& cache, const FwdParams& p, int batch,
                                              int kv_head) {
  using Element = typename Config::Element;
  const int chunks = p.problem.head_dim / 8, kept = kept_keys(cache, batch);
  for (int i = int(threadIdx.x); i < cache.new_rows * chunks; i += Config::kThreads) {
    const int row = i / chunks, column = (i - row * chunks) * 8;
    const KeyPlace to = place_of(cache, batch, kept + row, INT_MAX);
    const auto keep = [&](const View& from, const View& into) {
      *reinterpret_cast<uint4*>(row_pointer<Element>(into, to.page, to.row, kv_head) + column) =
          *reinterpret_cast<const uint4*>(row_pointer<const Element>(from, batch, row, kv_head) + column);
    };
    keep(cache.new_k, p.k);
    keep(cache.new_v, p.v);
  }
}

}  // namespace plab::ops::attention::sm90
