// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "ops/attention/mask.cuh"
#include "ops/attention/sm80/epilogue.cuh"
#include "ops/attention/sm80/gemm.cuh"
#include "ops/attention/sm80/softmax.cuh"

// The forward for compute capability 8.0 and newer.
namespace plab::ops::attention::sm80 {

// kLazy_: the row's reference lags behind its maximum (LazyRow), or is the maximum.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, int kBlocksPerSm_, bool kLazy_>
struct FwdConfig {
  using Element = Element_;
  using Row = std::conditional_t<kLazy_, LazyRow, RowState>;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_,
                       kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 128,
                       kBands = kTileQ / 64;        // four warps, kBands bands of 16 query rows each
  static constexpr bool kWhole = kBlocksPerSm < 3;  // 168 registers per thread are too few for it
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesKv = kTileKv * kHeadDim * 2;
  static constexpr int kSmemBytes = kBytesQ + 2 * kBytesKv;
  static_assert(kSmemBytes <= 99 * 1024, "sm_86 and sm_89 give a block no more than 99 KB");
};

// attention_fwd_sm80: O = softmax(mask(Q K^T scale)) V and its LSE, on mma.sync (Ampere and newer).
// Mapping   one block per kTileQ query rows of one head. Q stays in shared memory, K and V have one
//           tile each: V(n) is in flight while Q K(n)^T runs, K(n-1) while the softmax and P V(n) run. P
//           never leaves registers.
// Bytes     2 B (2 Sq H + 2 Sk Hkv) D + 4 B H Sq        Flops  4 B H Sq Sk D, half of it under a causal mask
// Roof      Sk / 2 flop per byte: compute. mma.sync reaches about 62 % of the 989 TFLOP/s (dense) of an H200.
// Contract  attention.h; head dims below kHeadDim read zeros for the missing columns.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_fwd_sm80_kernel(const __grid_constant__ FwdParams p, const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kBands = Config::kBands;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), k_tile = q_tile + Config::kBytesQ;
  const uint32_t v_tile = k_tile + Config::kBytesKv;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int kv_head = tile.head / (problem.heads / problem.kv_heads), dim = problem.head_dim,
            dim_v = problem.head_dim_v;
  const int rows = min(kM, tile.q_len - tile.row);
  const Visible visible(problem, tile);
  const int key_begin = visible.low(tile.row) / kN;
  const int key_end = (visible.high(tile.row + rows - 1, tile.k_len) + kN - 1) / kN;

  const Element* k = row_pointer<const Element>(p.k, tile.batch, tile.k_row, kv_head);
  const Element* v = row_pointer<const Element>(p.v, tile.batch, tile.k_row, kv_head);
  const auto load_kv = [&](uint32_t smem, const Element* from, const View& view, int n, int columns) {
    load_tile<kN, kD, Config::kThreads, Config::kWhole>(smem, from + int64_t{n} * kN * view.row, view.row,
                                                        tile.k_len - n * kN, columns);
    ptx::cp_async_commit();
  };
  load_tile<kM, kD, Config::kThreads, Config::kWhole>(
      q_tile, row_pointer<const Element>(p.q, tile.batch, tile.q_row + tile.row, tile.head), p.q.row, rows,
      dim);
  ptx::cp_async_commit();
  if (key_begin < key_end) load_kv(k_tile, k, p.k, key_end - 1, dim);

  const ScoreMap map(problem);
  const int lane = int(threadIdx.x & 31), row0 = int(threadIdx.x / 32) * 16 * kBands;
  float o[kBands][kD / 2] = {};
  typename Config::Row state[kBands];
  const float slack = LazyRow::kSlack / map.factor;

  for (int n = key_end - 1; n >= key_begin; --n) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // K(n) has arrived, and no warp still reads V(n+1)
    load_kv(v_tile, v, p.v, n, dim_v);
    float s[kBands][kN / 2] = {};
    product_nt<Element, kBands, kN, kD>(s, q_tile, row0, k_tile);
    ptx::cp_async_wait<0>();
    __syncthreads();  // V(n) has arrived, and no warp still reads K(n)
    if (n > key_begin) load_kv(k_tile, k, p.k, n - 1, dim);

    // Only edge tiles need per-element masks. Other tiles lie between the last row's low bound and the first
    // row's high bound.
    const bool edge =
        (n + 1) * kN > visible.high(tile.row, tile.k_len) || n * kN < visible.low(tile.row + rows - 1);
#pragma unroll
    for (int m = 0; m < kBands; ++m) {
      if (map.remap) remap_scores(s[m], map);
      if (edge) mask_scores(s[m], n * kN, tile.row + row0 + 16 * m, visible, tile.k_len);
      float rescale[2];
      if (exponentiate(s[m], map.factor, slack, state[m], rescale)) {
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) o[m][i] *= rescale[i / 2 % 2];
      }
    }
    product_nn<Element, kBands, kN, kD>(o, s, v_tile);
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // Q's tile becomes the staging area of O
  float* lse = static_cast<float*>(p.lse) + tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row +
               tile.row;
#pragma unroll
  for (int m = 0; m < kBands; ++m) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float value;
      finish_row(state[m], h, map.factor, problem.sink, tile.head, inverse[h], value);
      const int row = row0 + 16 * m + lane / 4 + 8 * h;
      if (lane % 4 == 0 && row < rows) lse[row] = value;
    }
    stage_rows<Element, kD>(q_tile, row0 + 16 * m, o[m], inverse);
  }
  __syncthreads();
  store_tile<kM, kD, Config::kThreads>(
      row_pointer<Element>(p.out, tile.batch, tile.q_row + tile.row, tile.head), p.out.row, q_tile, rows,
      dim_v);
}

}  // namespace plab::ops::attention::sm80
