// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch.h"
#include "ops/attention/dq_sum_sm80.cuh"

// The backward on mma.sync in one pass over the key tiles, five products: each block owns its keys' dK and dV
// and adds what they give to dQ to an fp32 sum. The order of those additions differs from run to run;
// bwd_sm80.cuh has the form whose bits do not.
namespace plab::ops::attention {

// kWarpsK x kWarpsQ warps share a tile of keys by queries. A warp has kTileKv / kWarpsK keys and all products
// on them: S^T and dP^T of its queries, in kParts, and kHeadDim / kWarpsQ columns of dK and dV.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, int kWarpsK_, int kWarpsQ_, int kParts_,
          int kBlocksPerSm_, bool kExpFirst_>
struct BwdSumSm80 {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_, kParts = kParts_;
  static constexpr int kWarpsK = kWarpsK_, kWarpsQ = kWarpsQ_, kWarps = kWarpsK * kWarpsQ;
  static constexpr int kThreads = 32 * kWarps, kBlocksPerSm = kBlocksPerSm_;
  static constexpr bool kExpFirst = kExpFirst_;  // write the exponentials before dP's product, or behind it
  static constexpr int kKeys = kTileKv / kWarpsK, kBands = kKeys / 16;  // of a warp
  static constexpr int kQueries = kTileQ / (kWarpsQ * kParts);          // of a part of a warp
  static constexpr int kColumns = kHeadDim / kWarpsQ;                   // of a warp's dK and dV
  static constexpr int kSumRows = 32, kSumWarpsQ = kTileQ / kSumRows;   // a warp's share of dQ ...
  static constexpr int kSumColumns = kHeadDim * kSumWarpsQ / kWarps;  // ... is 32 queries of so many columns
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

// Scores of keys on the rows that queries on the columns do not see become -inf. `key`: the band's first key,
// `query`: the fragment's first query.
template <int kRegs>
__device__ __forceinline__ void mask_keys(float (&s)[kRegs], int key, int query, const Visible& visible,
                                          const Tile& tile) {
  const int lane = int(threadIdx.x & 31);
  query += 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int j = key + lane / 4 + 8 * h;
    const int low = visible.low_query(j) - query;
    const int high = j < tile.k_len ? visible.high_query(j, tile.q_len) - query : 0;
    const uint32_t seen = bits_before(high) & ~bits_before(low);
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      if (!(seen >> (2 * (i / 4)) & 1)) s[i] = -INFINITY;
      if (!(seen >> (2 * (i / 4) + 1) & 1)) s[i + 1] = -INFINITY;
    }
  }
}

// A scale of 0 or below and a softcap: s becomes the exponent of 2, and dP - delta takes in the softcap's
// slope.
template <int kRegs>
__device__ __forceinline__ void remap_slopes(float (&s)[kRegs], float (&dp)[kRegs], const ScoreMap& map) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) {
    if (map.softcap) {
      const float t = tanh_fast(s[i] * map.inner);
      s[i] = map.outer * t;
      dp[i] *= 1.f - t * t;
    } else {
      s[i] *= map.inner;
    }
  }
}

// attention_bwd_sum_sm80: dK and dV of kTileKv keys of one head, and their share of dQ.
// Mapping   one block per key tile and key head; it walks the query heads that share the key head and their
//           visible query tiles. Keys lie on the rows of S^T = K Q^T and dP^T = V dO^T, so a warp's own P^T
//           and dS^T are register operands of dV and dK; the queries of warps with the same keys, and all of
//           dS for dQ = dS K, go through shared memory.
// Bytes     256 D a block, and per query tile 4 kTileQ D from L2 and 4 kTileQ D of additions to it
// Flops     10 B H Sq Sk D       Roof  compute; shared memory is a close second, see README.md
// Contract  attention.h; prepare.cuh has filled lse_log2 and delta, dq_sum is zero.
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
  const uint32_t ds_tile = v_tile + Config::kBytesKv;  // P's lies behind dS's
  const uint32_t first_stage = ds_tile + (Config::kShareP ? 2 : 1) * Config::kBytesDs;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  if (!tile.valid) return;
  const int dim = problem.head_dim, keys = min(kN, tile.k_len - tile.row);
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
                              p.v.row, keys, dim);
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
    __syncthreads();  // this tile of queries is here, and nobody reads the last one any more
    if (stages == 2 && step + 1 < steps)
      load_queries(first_stage + (~step & 1) * Config::kStageBytes, head, m);

#pragma unroll
    for (int part = 0; part < Config::kParts; ++part) {
      const int first = (warp_q * Config::kParts + part) * kQueries;  // within the tile
      const uint32_t q_rows = q_tile + first * kD * 2;
      const uint32_t lse_at = q_tile + 2 * kBytesQ + (first + pair) * 4;  // delta lies behind
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
    __syncthreads();  // P and dS of the whole tile are here

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
      if constexpr (Config::kShareP) __syncthreads();  // nobody reads these queries any more
      load_queries(first_stage, head, m);
    }

    float dq[Config::kSumRows / 16][Config::kSumColumns / 2] = {};
    product_tn<Element, kN, kM, Config::kSumColumns, kD>(dq, ds_tile, sum_row, k_tile, sum_column);
    const int64_t sum_tile = first_sum_tile_sm80<Config>(problem, tile, this_head) + this_m;
    float* sum = p.dq_sum + (sum_tile * Config::kWarps + warp) * (Config::kSumRegs * 32) + sum_lane();
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
                               keys, dim);
}

// Floats of dq_sum; 0 where a block does not get the shared memory it needs, and the two passes of
// bwd_sm80.cuh are what there is (d128 and d256 on sm_86 and sm_89).
template <class Config>
int64_t sum_floats_sm80(const Problem& p) {
  if (Config::smem_bytes(1) > cuda::max_shared_bytes()) return 0;
  return int64_t{p.heads} * (p.cu_seqlens_q ? 1 : p.batch) * sum_tiles_sm80<Config>(p) * Config::kTileQ *
         Config::kHeadDim;
}

template <class Config>
void launch_bwd_sum_sm80(const BwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int sequences = p.cu_seqlens_q ? p.batch : 1;  // that share q_len
  PLAB_CUDA_CHECK(cudaMemsetAsync(params.dq_sum, 0,
                                  static_cast<size_t>(sum_floats_sm80<Config>(p)) * sizeof(float), stream));
  TileGrid keys = make_tile_grid(p, false, Config::kTileKv,
                                 p.q_len / sequences * p.head_dim * 8 * (p.heads / p.kv_heads));
  // Under a causal mask the first key tiles have the most work; where there are few blocks, they start first
  // across all heads.
  if (p.window_right >= 0 && blocks(keys) < 8 * cuda::multiprocessors()) keys.section = keys.groups;
  if (blocks(keys) > 0) {
    const bool remap = p.softcap > 0 || !(p.scale > 0);  // as ScoreMap's
    const auto kernel =
        remap ? attention_bwd_sum_sm80_kernel<Config, true> : attention_bwd_sum_sm80_kernel<Config, false>;
    const int per_sm = cuda::device_attribute<cudaDevAttrMaxSharedMemoryPerMultiprocessor>();
    const int two = Config::smem_bytes(2);
    const int stages =
        two <= cuda::max_shared_bytes() && Config::kBlocksPerSm * (two + 1024) <= per_sm ? 2 : 1;
    const int bytes = Config::smem_bytes(stages);
    PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<static_cast<unsigned>(blocks(keys)), Config::kThreads, bytes, stream>>>(params, keys, stages);
    PLAB_CHECK_LAUNCH();
  }
  const TileGrid rows = make_tile_grid(p, true, Config::kTileQ, p.q_len * p.head_dim * 4);
  attention_bwd_sum_rows_sm80_kernel<Config>
      <<<static_cast<unsigned>(blocks(rows)), Config::kThreads, 0, stream>>>(params, rows);
  PLAB_CHECK_LAUNCH();
}

template <class Element>
using BwdSumD64Sm80 = BwdSumSm80<Element, 64, 64, 128, 4, 1, 2, 2, true>;
template <class Element>
using BwdSumD128Sm80 = BwdSumSm80<Element, 128, 64, 128, 4, 2, 1, 1, false>;
template <class Element>
using BwdSumD256Sm80 = BwdSumSm80<Element, 256, 64, 64, 2, 4, 1, 1, false>;

inline int64_t dq_sum_floats_sm80(const Problem& p) {
  if (p.head_dim <= 64) return sum_floats_sm80<BwdSumD64Sm80<__half>>(p);
  if (p.head_dim <= 128) return sum_floats_sm80<BwdSumD128Sm80<__half>>(p);
  return sum_floats_sm80<BwdSumD256Sm80<__half>>(p);
}

}  // namespace plab::ops::attention
