// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/mask.cuh"
#include "ops/attention/sm80/epilogue.cuh"
#include "ops/attention/sm80/gemm.cuh"
#include "ops/attention/sm80/softmax.cuh"
#include "ops/attention/sm80/tiles.cuh"

// The deterministic backward: two kernels, and every output element has one owner. There are no atomics and no
// accumulator of dQ in global memory, and the bits are the same in every run. The cost: both kernels compute S
// and dP, so there are 7 products instead of 5.
//   P  = exp2(score - LSE log2(e))     dP = dO V^T              dS = P (dP - delta)
//   dV = P^T dO                        dK = scale dS^T Q        dQ = scale dS K
namespace plab::ops::attention::sm80 {

enum class Gradient { kKeyAndValue, kKey, kValue };  // what one launch of the key kernel accumulates

template <class Element_, int kHeadDim_, int kTileQ_, Gradient kGradient_, int kBlocksPerSm_>
struct BwdKvConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = 64, kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kDk = kGradient_ != Gradient::kValue, kDv = kGradient_ != Gradient::kKey;
  static constexpr int kThreads = 128;  // four warps of 16 keys
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2;
  static constexpr int kStageBytes = 2 * kBytesQ + 2 * kTileQ * 4;
  static constexpr int smem_bytes(int stages) { return 2 * kBytesKv + stages * kStageBytes; }
  static_assert(smem_bytes(1) <= 99 * 1024, "sm_86 and sm_89 give a block no more than 99 KB");
};

// attention_bwd_key_sm80: dK and dV of 64 keys of one head.
// Mapping   one block per key tile and key head; it walks the query heads that share the key head and their
//           visible query tiles. S^T = K Q^T puts keys on the rows: P^T and dS^T are then register operands
//           of dV and dK.
// Bytes     256 D a block, and 4 kTileQ D per query tile from L2     Flops  8 B H Sq Sk D (both gradients)
// Roof      compute; the B operands of four products per tile make shared memory a close second.
// Contract  attention.h; preprocess.cuh has filled lse_log2 and delta.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_bwd_key_sm80_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                                  int stages) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kThreads = Config::kThreads;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t first_stage = v_tile + Config::kBytesKv;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  if (!tile.valid) return;
  const int dim = problem.head_dim, dim_v = problem.head_dim_v, keys = min(kN, tile.k_len - tile.row),
            group = problem.heads / problem.kv_heads;
  const Visible visible(problem, tile);
  const int query_begin = visible.low_query(tile.row) / kM;
  const int query_end = (visible.high_query(tile.row + keys - 1, tile.q_len) + kM - 1) / kM;
  const int tiles = max(0, query_end - query_begin), steps = tiles * group;

  const auto load_queries = [&](int step) {
    const uint32_t stage = first_stage + (stages == 2 ? step & 1 : 0) * Config::kStageBytes;
    load_query_stage<Config>(p, tile, stage, tile.head * group + step / tiles,
                             (query_begin + step % tiles) * kM);
  };

  load_tile<kN, kD, kThreads>(k_tile,
                              row_pointer<const Element>(p.k, tile.batch, tile.k_row + tile.row, tile.head),
                              p.k.row, keys, dim);
  if (Config::kDk)
    load_tile<kN, kD, kThreads>(v_tile,
                                row_pointer<const Element>(p.v, tile.batch, tile.k_row + tile.row, tile.head),
                                p.v.row, keys, dim_v);
  ptx::cp_async_commit();
  if (steps > 0) load_queries(0);

  const ScoreMap map(problem);
  const int lane = int(threadIdx.x & 31), row0 = int(threadIdx.x / 32) * 16, pair = 2 * (lane % 4);
  float dk[1][Config::kDk ? kD / 2 : 1] = {}, dv[1][Config::kDv ? kD / 2 : 1] = {};
  int query_low[2], query_high[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = tile.row + row0 + lane / 4 + 8 * h;
    query_low[h] = visible.low_query(j);
    query_high[h] = j < tile.k_len ? visible.high_query(j, tile.q_len) : 0;
  }

  for (int step = 0; step < steps; ++step) {
    if (stages == 2 && step + 1 < steps) {
      load_queries(step + 1);
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    const uint32_t stage = first_stage + (stages == 2 ? step & 1 : 0) * Config::kStageBytes;
    const uint32_t q_tile = stage, do_tile = stage + Config::kBytesQ,
                   statistics = stage + 2 * Config::kBytesQ;
    const int first = (query_begin + step % tiles) * kM;

    float s[1][kM / 2] = {}, dp[1][kM / 2] = {};
    product_nt<Element, 1, kM, kD>(s, k_tile, row0, q_tile);
    if constexpr (Config::kDk) product_nt<Element, 1, kM, kD>(dp, v_tile, row0, do_tile);
#pragma unroll
    for (int i = 0; i < kM / 2; ++i) {
      const int column = 8 * (i / 4) + pair + i % 2, h = i / 2 % 2, query = first + column;
      const float lse_log2 = ptx::load_shared_float(statistics + column * 4);
      const float delta = Config::kDk ? ptx::load_shared_float(statistics + (kM + column) * 4) : 0.f;
      probability_and_slope(s[0][i], dp[0][i], map, query >= query_low[h] && query < query_high[h], lse_log2,
                            delta);
    }
    if constexpr (Config::kDv) product_nn<Element, 1, kM, kD>(dv, s, do_tile);
    if constexpr (Config::kDk) product_nn<Element, 1, kM, kD>(dk, dp, q_tile);
    __syncthreads();  // all warps are done with this stage
    if (stages == 1 && step + 1 < steps) load_queries(step + 1);
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // K's and V's tiles become the staging area
  const float scale = float(problem.scale), scales[2] = {scale, scale}, ones[2] = {1.f, 1.f};
  if constexpr (Config::kDk) stage_rows<Element, kD>(k_tile, row0, dk[0], scales);
  if constexpr (Config::kDv) stage_rows<Element, kD>(v_tile, row0, dv[0], ones);
  __syncthreads();
  const int64_t row = tile.k_row + tile.row;
  if constexpr (Config::kDk)
    store_tile<kN, kD, kThreads>(row_pointer<Element>(p.dk, tile.batch, row, tile.head), p.dk.row, k_tile,
                                 keys, dim);
  if constexpr (Config::kDv)
    store_tile<kN, kD, kThreads>(row_pointer<Element>(p.dv, tile.batch, row, tile.head), p.dv.row, v_tile,
                                 keys, dim_v);
}

template <class Element_, int kHeadDim_, int kTileKv_, int kBlocksPerSm_>
struct BwdQConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = 64, kTileKv = kTileKv_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 128;  // four warps of 16 queries
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesKv = kTileKv * kHeadDim * 2;
  static constexpr int smem_bytes(int stages) { return 2 * kBytesQ + stages * 2 * kBytesKv; }
  static_assert(smem_bytes(1) <= 99 * 1024, "sm_86 and sm_89 give a block no more than 99 KB");
};

// attention_bwd_query_sm80: dQ of 64 queries of one head, the forward's loop with dS in place of P.
// Mapping   one block per query tile and head, over its visible key tiles; dS is the register operand of
//           dQ += dS K.
// Bytes     256 D a block, and 4 kTileKv D per key tile from L2      Flops  6 B H Sq Sk D      Roof  compute
// Contract  attention.h; preprocess.cuh has filled lse_log2 and delta.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_bwd_query_sm80_kernel(const __grid_constant__ BwdParams p,
                                    const __grid_constant__ TileGrid grid, int stages) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kThreads = Config::kThreads;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), do_tile = q_tile + Config::kBytesQ;
  const uint32_t first_stage = do_tile + Config::kBytesQ;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int dim = problem.head_dim, dim_v = problem.head_dim_v, rows = min(kM, tile.q_len - tile.row);
  const int kv_head = tile.head / (problem.heads / problem.kv_heads);
  const Visible visible(problem, tile);
  const int key_begin = visible.low(tile.row) / kN;
  const int key_end = (visible.high(tile.row + rows - 1, tile.k_len) + kN - 1) / kN;

  const auto load_keys = [&](int n) {
    const uint32_t stage = first_stage + (stages == 2 ? n & 1 : 0) * 2 * Config::kBytesKv;
    const int64_t row = tile.k_row + int64_t{n} * kN;
    const int left = tile.k_len - n * kN;
    load_tile<kN, kD, kThreads>(stage, row_pointer<const Element>(p.k, tile.batch, row, kv_head), p.k.row,
                                left, dim);
    load_tile<kN, kD, kThreads>(stage + Config::kBytesKv,
                                row_pointer<const Element>(p.v, tile.batch, row, kv_head), p.v.row, left,
                                dim_v);
    ptx::cp_async_commit();
  };
  const int64_t row = tile.q_row + tile.row;
  load_tile<kM, kD, kThreads>(q_tile, row_pointer<const Element>(p.q, tile.batch, row, tile.head), p.q.row,
                              rows, dim);
  load_tile<kM, kD, kThreads>(do_tile, row_pointer<const Element>(p.dout, tile.batch, row, tile.head),
                              p.dout.row, rows, dim_v);
  ptx::cp_async_commit();
  if (key_begin < key_end) load_keys(key_end - 1);

  const ScoreMap map(problem);
  const int lane = int(threadIdx.x & 31), row0 = int(threadIdx.x / 32) * 16, pair = 2 * (lane % 4);
  float dq[1][kD / 2] = {}, lse_log2[2] = {}, delta[2] = {};
  int low[2], high[2];
  const int64_t statistics = tile.batch * p.rows.batch + tile.head * p.rows.head + row;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int i = row0 + lane / 4 + 8 * h;
    low[h] = visible.low(tile.row + i);
    high[h] = visible.high(tile.row + i, tile.k_len);
    if (i < rows) {
      lse_log2[h] = static_cast<const float*>(p.lse_log2)[statistics + i];
      delta[h] = static_cast<const float*>(p.delta)[statistics + i];
    }
  }

  for (int n = key_end - 1; n >= key_begin; --n) {
    if (stages == 2 && n > key_begin) {
      load_keys(n - 1);
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    const uint32_t k_tile = first_stage + (stages == 2 ? n & 1 : 0) * 2 * Config::kBytesKv;
    float s[1][kN / 2] = {}, dp[1][kN / 2] = {};
    product_nt<Element, 1, kN, kD>(s, q_tile, row0, k_tile);
    product_nt<Element, 1, kN, kD>(dp, do_tile, row0, k_tile + Config::kBytesKv);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int key = n * kN + 8 * (i / 4) + pair + i % 2, h = i / 2 % 2;
      probability_and_slope(s[0][i], dp[0][i], map, key >= low[h] && key < high[h], lse_log2[h], delta[h]);
    }
    product_nn<Element, 1, kN, kD>(dq, dp, k_tile);
    __syncthreads();
    if (stages == 1 && n > key_begin) load_keys(n - 1);
  }

  ptx::cp_async_wait<0>();
  __syncthreads();
  const float scale = float(problem.scale), scales[2] = {scale, scale};
  stage_rows<Element, kD>(q_tile, row0, dq[0], scales);
  __syncthreads();
  store_tile<kM, kD, kThreads>(row_pointer<Element>(p.dq, tile.batch, row, tile.head), p.dq.row, q_tile, rows,
                               dim);
}

}  // namespace plab::ops::attention::sm80
