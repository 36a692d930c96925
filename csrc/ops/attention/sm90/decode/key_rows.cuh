// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/key_cache.cuh"
#include "ops/attention/sm90/launch.h"
#include "ops/attention/warp_gemm.cuh"

// Where the decode kernel's keys and values lie, and how a warp copies 16 rows of them.
namespace plab::ops::attention::sm90 {

// Keys as the tensors of FwdParams, or in its cache.
struct DenseKeys {
  static constexpr bool kCached = false;
};
struct CachedKeys {
  static constexpr bool kCached = true;
};

// The 16 query rows, of all query heads that share key head kv_head, that a cluster works on.
struct DecodeTile {
  int sequence, kv_head;
  int batch, q_row;  // where the sequence begins in q and out
  int q_len, k_len;
  int first_row;  // row r is query r % q_len of the group's head r / q_len
  int elsewhere;  // the last keys, which are not in the cache yet
};

// A bound on the tiles of all sequences of at most most_rows rows: p.q_len rows in all, and each sequence may have
// one tile that is not full.
inline int most_decode_tiles(const Problem& p, int most_rows) {
  const int64_t heads = p.heads / p.kv_heads, most = p.q_len < most_rows ? p.q_len : most_rows;
  const int64_t of_one = (most * heads + kDecodeRows - 1) / kDecodeRows, by_sequences = p.batch * of_one,
                by_rows = p.q_len * heads / kDecodeRows + p.batch;
  return int(by_sequences < by_rows ? by_sequences : by_rows);
}

// Without cu_seqlens_q every sequence has row_tiles tiles. With it that is a bound on the tiles of all sequences of
// at most most_rows rows, and the keys that the call adds are in the cache already. False: no tile.
template <class Keys>
__device__ __forceinline__ bool find_decode_tile(DecodeTile& tile, const FwdParams& p, int cluster,
                                                 int row_tiles, int most_rows) {
  const Problem& problem = p.problem;
  const int group = cluster / row_tiles;
  int number = cluster - group * row_tiles;
  tile.q_row = tile.elsewhere = 0;
  if (Keys::kCached && problem.cu_seqlens_q != nullptr) {
    const int heads = problem.heads / problem.kv_heads;
    tile.kv_head = group, tile.batch = 0;
    tile.sequence = find_sequence(problem.batch, number, [&](int b) {
      const int rows = query_rows(problem, b);
      return rows <= most_rows ? (rows * heads + kDecodeRows - 1) / kDecodeRows : 0;
    });
    if (tile.sequence < 0) return false;
    tile.q_row = problem.cu_seqlens_q[tile.sequence];
    tile.q_len = query_rows(problem, tile.sequence);
  } else {
    tile.sequence = tile.batch = group / problem.kv_heads;
    tile.kv_head = group - tile.batch * problem.kv_heads;
    tile.q_len = int(problem.q_len);
    if (Keys::kCached) tile.elsewhere = p.cache.new_rows;
  }
  tile.first_row = number * kDecodeRows;
  tile.k_len = Keys::kCached ? cached_keys(p.cache, problem, tile.sequence) : int(problem.k_len);
  return true;
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
__device__ __forceinline__ void load_keys(DenseKeys, uint32_t stage, const FwdParams& p,
                                          const DecodeTile& tile, int key) {
  using Element = typename Config::Element;
  load_rows<Config::kHeadDim>(stage, row_pointer<const Element>(p.k, tile.batch, key, tile.kv_head), p.k.row,
                              tile.k_len - key, p.problem.head_dim);
  load_rows<Config::kHeadDim>(stage + Config::kBytesTile,
                              row_pointer<const Element>(p.v, tile.batch, key, tile.kv_head), p.v.row,
                              tile.k_len - key, p.problem.head_dim_v);
}

template <class Config>
__device__ __forceinline__ void keep_new_keys(DenseKeys, const FwdParams&, const DecodeTile&) {}

// Lane l looks up row l % 16 of the tile. Keys that this call adds, unless they are in the cache already, are read
// where they are (page -1), so no block waits until another has put them into the cache.
template <class Config>
__device__ __forceinline__ void load_keys(CachedKeys, uint32_t stage, const FwdParams& p,
                                          const DecodeTile& tile, int key) {
  using Element = typename Config::Element;
  constexpr int kCols = Config::kHeadDim, kChunks = kCols / 8, kStep = 32 / kChunks;
  const KeyCache& cache = p.cache;
  const int lane = int(threadIdx.x & 31), row0 = lane / kChunks, chunk = lane % kChunks;
  const int mine = min(key + lane % 16, tile.k_len - 1), kept = tile.k_len - tile.elsewhere;
  const KeyPlace place = mine >= kept ? KeyPlace{-1, mine - kept} : place_of(cache, tile.sequence, mine);
  const int left = chunk * 8 < p.problem.head_dim ? tile.k_len - key - row0 : 0;
#pragma unroll
  for (int i = 0; i < 16 / kStep; ++i) {
    const int page = __shfl_sync(~0u, place.page, row0 + i * kStep);
    const int row = __shfl_sync(~0u, place.row, row0 + i * kStep);
    const uint32_t to = stage + chunk_bytes<kCols>(row0 + i * kStep, chunk);
    const bool added = page < 0;
    const int batch = added ? tile.sequence : page;
    const Element* k = row_pointer<const Element>(added ? cache.new_k : p.k, batch, row, tile.kv_head);
    const Element* v = row_pointer<const Element>(added ? cache.new_v : p.v, batch, row, tile.kv_head);
    ptx::cp_async_16(to, k + chunk * 8, i * kStep < left);
    ptx::cp_async_16(to + Config::kBytesTile, v + chunk * 8, i * kStep < left);
  }
}

// Puts the call's keys into the cache; by one block for each sequence and key head.
template <class Config>
__device__ __forceinline__ void keep_new_keys(CachedKeys, const FwdParams& p, const DecodeTile& tile) {
  const int chunks = p.problem.head_dim / 8, kept = tile.k_len - tile.elsewhere;
  for (int i = int(threadIdx.x); i < tile.elsewhere * chunks; i += Config::kThreads)
    keep_piece(p, tile.sequence, kept + i / chunks, tile.sequence, i / chunks, tile.kv_head, i % chunks);
}

}  // namespace plab::ops::attention::sm90
