// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/mask.cuh"
#include "ops/attention/sm80/bwd_postprocess.cuh"
#include "ops/attention/sm80/epilogue.cuh"
#include "ops/attention/sm80/gemm.cuh"
#include "ops/attention/sm80/softmax.cuh"
#include "ops/attention/sm80/tiles.cuh"

// The backward in one pass over the key tiles, with five products. Each block owns dK and dV of its keys and
// adds its part of dQ to an fp32 accumulator with atomics. The order of these additions differs from run to run.
// bwd_deterministic_kernels.cuh has the version that gives the same bits in every run.
namespace plab::ops::attention::sm80 {

// kWarpsK x kWarpsQ warps share a tile of keys by queries. A warp owns kTileKv / kWarpsK keys and computes all
// products on them: S^T and dP^T of its queries, in kParts parts, and kHeadDim / kWarpsQ columns of dK and dV.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, int kWarpsK_, int kWarpsQ_, int kParts_,
          int kBlocksPerSm_, bool kExpFirst_>
struct BwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_, kParts = kParts_;
  static constexpr int kWarpsK = kWarpsK_, kWarpsQ = kWarpsQ_, kWarps = kWarpsK * kWarpsQ;
  static constexpr int kThreads = 32 * kWarps, kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kExpFirst = kExpFirst_;  // exponentials before dP's product, or after it
  static constexpr int kKeys = kTileKv / kWarpsK, kBands = kKeys / 16;  // of a warp
  static constexpr int kQueries = kTileQ / (kWarpsQ * kParts);          // of a part of a warp
  static constexpr int kColumns = kHeadDim / kWarpsQ;                   // of a warp's dK and dV
  static constexpr int kSumRows = 32, kSumWarpsQ = kTileQ / kSumRows;   // a warp's part of dQ ...
  static constexpr int kSumColumns = kHeadDim * kSumWarpsQ / kWarps;    // ... is 32 queries x kSumColumns
  static constexpr int kSumRegs = kSumRows * kSumColumns / 32;
  static constexpr bool kShareP = kWarpsQ > 1;  // warps with the same keys need each other's P and dS
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2;
  static constexpr int kBytesDs = kTileKv * kTileQ * 2;
  static constexpr int kStageBytes = 2 * kBytesQ + 2 * kTileQ * 4;
  static constexpr int smem_bytes(int stages) {
    return 2 * kBytesKv + (kShareP ? 2 : 1) * kBytesDs + stages * kStageBytes;
  }
  static_assert(kParts == 1 || !kShareP, "P of one part at a time would need a barrier each");
  static_assert(kTileQ % 64 == 0 && kKeys % 16 == 0 && kQueries % 16 == 0 && kSumColumns % 16 == 0);
};

// attention_bwd_sum_sm80: dK and dV of kTileKv keys of one head, and their part of dQ.
// Mapping   one block per key tile and key head; it walks the query heads that share the key head and their
//           visible query tiles. Keys lie on the rows of S^T = K Q^T and dP^T = V dO^T, so a warp's own P^T
//           and dS^T are register operands of dV and dK; the queries of warps with the same keys, and all of
//           dS for dQ = dS K, go through shared memory.
// Bytes     256 D a block, and per query tile 4 kTileQ D from L2 and 4 kTileQ D of additions to it
// Flops     10 B H Sq Sk D       Roof  compute; shared memory is a close second, see README.md
// Contract  attention.h; preprocess.cuh has filled lse_log2 and delta, dq_accum is zero.
template <class Config, bool kRemap>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_bwd_sum_sm80_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                                  int stages) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kThreads = Config::kThreads;
  constexpr int kBands = Config::kBands, kQueries = Config::kQueries, kColumns = Config::kColumns;
  constexpr int kBytesKv = Config::kBytesKv, kBytesQ = Config::kBytesQ;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t ds_tile = v_tile + Config::kBytesKv;  // the tile of P follows the tile of dS
  const uint32_t first_stage = ds_tile + (Config::kShareP ? 2 : 1) * Config::kBytesDs;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  if (!tile.valid) return;
  const int dim = problem.head_dim, dim_v = problem.head_dim_v, keys = min(kN, tile.k_len - tile.row);
  const int group = problem.heads / problem.kv_heads;
  const Visible visible(problem, tile);
  const int begin = visible.low_query(tile.row) / kM;
  const int end = (visible.high_query(tile.row + keys - 1, tile.q_len) + kM - 1) / kM;
  const int steps = max(0, end - begin) * group;

  const auto load_queries = [&](uint32_t stage, int head, int m) {
    load_query_stage<Config>(p, tile, stage, head, m * kM);
  };

  int m = begin, head = tile.head * group;
  if (steps > 0) load_queries(first_stage, head, m);
  const int64_t key_row = tile.k_row + tile.row;
  load_tile<kN, kD, kThreads>(k_tile, row_pointer<const Element>(p.k, tile.batch, key_row, tile.head),
                              p.k.row, keys, dim);
  load_tile<kN, kD, kThreads>(v_tile, row_pointer<const Element>(p.v, tile.batch, key_row, tile.head),
                              p.v.row, keys, dim_v);
  ptx::cp_async_commit();

  const ScoreMap map(problem);
  const int lane = int(threadIdx.x & 31), warp = int(threadIdx.x / 32), pair = 2 * (lane % 4);
  const int row0 = warp / Config::kWarpsQ * Config::kKeys, warp_q = warp % Config::kWarpsQ;
  const int column0 = warp_q * kColumns;
  const int sum_row = warp % Config::kSumWarpsQ * Config::kSumRows;
  const int sum_column = warp / Config::kSumWarpsQ * Config::kSumColumns;
  float dk[kBands][kColumns / 2] = {}, dv[kBands][kColumns / 2] = {};

  for (int step = 0; step < steps; ++step) {
    const uint32_t q_tile = first_stage + (stages == 2 ? step & 1 : 0) * Config::kStageBytes;
    const int this_m = m, this_head = head;
    if (++m == end) {
      m = begin;
      ++head;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();  // this query tile has arrived, and no warp still reads the previous one
    if (stages == 2 && step + 1 < steps)
      load_queries(first_stage + (~step & 1) * Config::kStageBytes, head, m);

#pragma unroll
    for (int part = 0; part < Config::kParts; ++part) {
      const int first = (warp_q * Config::kParts + part) * kQueries;  // within the tile
      const uint32_t q_rows = q_tile + first * kD * 2;
      const uint32_t lse_at = q_tile + 2 * kBytesQ + (first + pair) * 4;  // delta follows
      const int key = tile.row + row0, query = this_m * kM + first;
      float s[kBands][kQueries / 2] = {}, dp[kBands][kQueries / 2];
      const auto product_dp = [&] {  // dP - delta
#pragma unroll
        for (int j = 0; j < kQueries / 2; j += 4) {
          const float2 delta = ptx::load_shared_float2(lse_at + (kM + 2 * j) * 4);
#pragma unroll
          for (int b = 0; b < kBands; ++b) {
            dp[b][j] = dp[b][j + 2] = -delta.x;
            dp[b][j + 1] = dp[b][j + 3] = -delta.y;
          }
        }
        product_nt<Element, kBands, kQueries, kD>(dp, k_tile, row0, q_rows, kBytesKv, kBytesQ);
      };
      product_nt<Element, kBands, kQueries, kD>(s, k_tile, row0, q_rows);
      if constexpr (kRemap) {
        product_dp();
#pragma unroll
        for (int b = 0; b < kBands; ++b) remap_slopes(s[b], dp[b], map);
      }
      if (key + Config::kKeys > visible.high(query, tile.k_len) || key < visible.low(query + kQueries - 1)) {
#pragma unroll
        for (int b = 0; b < kBands; ++b) mask_keys(s[b], key + 16 * b, query, visible, tile);
      }
      if constexpr (!kRemap && !Config::kExpFirst) product_dp();
      uint32_t prob[kBands][kQueries / 4], slope[kBands][kQueries / 4];
#pragma unroll
      for (int j = 0; j < kQueries / 2; j += 4) {
        const float2 lse = ptx::load_shared_float2(lse_at + j * 8);
#pragma unroll
        for (int b = 0; b < kBands; ++b)
#pragma unroll
          for (int i = j; i < j + 4; i += 2) {
            s[b][i] = ptx::ex2_approx_ftz(s[b][i] * map.factor - lse.x);
            s[b][i + 1] = ptx::ex2_approx_ftz(s[b][i + 1] * map.factor - lse.y);
            prob[b][i / 2] = ptx::pack_pair<Element>(s[b][i], s[b][i + 1]);
          }
      }
      if constexpr (Config::kShareP) store_fragments<kM>(ds_tile, row0, first, prob, Config::kBytesDs);
      if constexpr (!kRemap && Config::kExpFirst) product_dp();
      product_packed<Element, kColumns, kD>(dv, prob, q_rows, column0, kBytesQ);
#pragma unroll
      for (int b = 0; b < kBands; ++b)
#pragma unroll
        for (int i = 0; i < kQueries / 2; i += 2)
          slope[b][i / 2] = ptx::pack_pair<Element>(s[b][i] * dp[b][i], s[b][i + 1] * dp[b][i + 1]);
      store_fragments<kM>(ds_tile, row0, first, slope);
      product_packed<Element, kColumns, kD>(dk, slope, q_rows, column0);
    }
    __syncthreads();  // P and dS of the whole tile have arrived

    if constexpr (Config::kShareP) {
#pragma unroll
      for (int other = 1; other < Config::kWarpsQ; ++other) {
        const int first = (warp_q + other) % Config::kWarpsQ * kQueries;
        const uint32_t q_rows = q_tile + first * kD * 2;
        product_shared<Element, kBands, kQueries, kM, kColumns, kD>(dv, ds_tile, row0, first, q_rows, column0,
                                                                    Config::kBytesDs, kBytesQ);
        product_shared<Element, kBands, kQueries, kM, kColumns, kD>(dk, ds_tile, row0, first, q_rows,
                                                                    column0);
      }
    }
    if (stages == 1 && step + 1 < steps) {
      if constexpr (Config::kShareP) __syncthreads();  // no warp still reads these queries
      load_queries(first_stage, head, m);
    }

    float dq[Config::kSumRows / 16][Config::kSumColumns / 2] = {};
    product_tn<Element, kN, kM, Config::kSumColumns, kD>(dq, ds_tile, sum_row, k_tile, sum_column);
    const int64_t accum_tile = first_accum_tile<Config>(problem, tile, this_head) + this_m;
    float* sum = p.dq_accum + (accum_tile * Config::kWarps + warp) * (Config::kSumRegs * 32) + accum_lane();
#pragma unroll
    for (int b = 0; b < Config::kSumRows / 16; ++b)
#pragma unroll
      for (int i = 0; i < Config::kSumColumns / 2; ++i)
        atomicAdd(sum + (b * (Config::kSumColumns / 2) + i) * 32, dq[b][i]);
  }

  ptx::cp_async_wait<0>();
  __syncthreads();  // K's and V's tiles become the staging area
  const float scale = float(problem.scale), scales[2] = {scale, scale}, ones[2] = {1.f, 1.f};
#pragma unroll
  for (int b = 0; b < kBands; ++b) {
    stage_rows<Element, kD>(k_tile, row0 + 16 * b, dk[b], scales, column0);
    stage_rows<Element, kD>(v_tile, row0 + 16 * b, dv[b], ones, column0);
  }
  __syncthreads();
  store_tile<kN, kD, kThreads>(row_pointer<Element>(p.dk, tile.batch, key_row, tile.head), p.dk.row, k_tile,
                               keys, dim);
  store_tile<kN, kD, kThreads>(row_pointer<Element>(p.dv, tile.batch, key_row, tile.head), p.dv.row, v_tile,
                               keys, dim_v);
}

}  // namespace plab::ops::attention::sm80
