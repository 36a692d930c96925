// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/mask.cuh"
#include "ops/attention/sm80/epilogue.cuh"
#include "ops/attention/sm80/gemm.cuh"
#include "ops/attention/sm80/softmax.cuh"

// The forward at head_dim 256, on GPUs with enough shared memory per block (not sm_86 and sm_89).
namespace plab::ops::attention::sm80 {

// Two warps share 32 query rows. Each computes half of the keys of S and half of the columns of O.
template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, int kBlocksPerSm_>
struct FwdPairsConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_,
                       kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 2 * kTileQ;
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesKv = kTileKv * kHeadDim * 2,
                       kBytesP = kTileQ * kTileKv * 2,
                       kBytesRows = 2 * kTileQ * 4;  // a float per row and half
  static constexpr int kSmemBytes = kBytesQ + 2 * kBytesKv + kBytesP + kBytesRows;
};

// attention_fwd_pairs_sm80: O = softmax(mask(Q K^T scale)) V and its LSE, on mma.sync, for head_dim 256.
// Mapping   as attention_fwd_sm80, but a warp has 32 rows, so a fragment of K or V serves two products. A warp
//           has half of the columns of O, because all of them would take 256 accumulators. It computes S for
//           half of the keys. The two warps exchange maxima and exponentials through shared memory.
// Bytes     2 B (2 Sq H + 2 Sk Hkv) D + 4 B H Sq        Flops  4 B H Sq Sk D, half of it under a causal mask
// Roof      For a tile of 64 x 64 the products take 1640 clocks, and their reads from shared memory take 1660
//           (2300 with 16 rows per warp).
// Contract  attention.h; head dims below kHeadDim read zeros for the missing columns.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_fwd_pairs_sm80_kernel(const __grid_constant__ FwdParams p,
                                    const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kKeys = kN / 2, kColumns = kD / 2;  // of a warp
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), k_tile = q_tile + Config::kBytesQ;
  const uint32_t v_tile = k_tile + Config::kBytesKv, p_tile = v_tile + Config::kBytesKv;
  float* const row_floats = reinterpret_cast<float*>(memory + Config::kSmemBytes - Config::kBytesRows);

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
    load_tile<kN, kD, Config::kThreads>(smem, from + int64_t{n} * kN * view.row, view.row,
                                        tile.k_len - n * kN, columns);
  };
  load_tile<kM, kD, Config::kThreads>(
      q_tile, row_pointer<const Element>(p.q, tile.batch, tile.q_row + tile.row, tile.head), p.q.row, rows,
      dim);
  if (key_begin < key_end) load_kv(k_tile, k, p.k, key_end - 1, dim);
  ptx::cp_async_commit();

  const ScoreMap map(problem);
  const float slack = LazyRow::kSlack / map.factor;
  const int lane = int(threadIdx.x & 31), warp = int(threadIdx.x / 32);
  const int half = warp % 2, row0 = warp / 2 * 32;
  const int key0 = half * kKeys, other_key0 = (1 - half) * kKeys, column0 = half * kColumns;
  float* const mine = row_floats + half * kM + row0 + lane / 4;  // of rows 8 apart
  const float* const theirs = row_floats + (1 - half) * kM + row0 + lane / 4;
  float o[2][kColumns / 2] = {};
  RowState state[2];

  for (int n = key_end - 1; n >= key_begin; --n) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // K(n) has arrived, and no warp still reads V(n+1) and P(n+1)
    load_kv(v_tile, v, p.v, n, dim_v);
    ptx::cp_async_commit();
    float s[2][kKeys / 2] = {}, top[2][2];
    product_nt<Element, 2, kKeys, kD>(s, q_tile, row0, k_tile + key0 * kD * 2);
    const bool edge =
        (n + 1) * kN > visible.high(tile.row, tile.k_len) || n * kN < visible.low(tile.row + rows - 1);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if (map.remap) remap_scores(s[m], map);
      if (edge) mask_scores(s[m], n * kN + key0, tile.row + row0 + 16 * m, visible, tile.k_len);
      row_maxima(top[m], s[m]);
      if (lane % 4 == 0) mine[16 * m] = top[m][0], mine[16 * m + 8] = top[m][1];
    }
    __syncthreads();  // the other half's maxima have arrived, and no warp still reads K(n)
    if (n > key_begin) load_kv(k_tile, k, p.k, n - 1, dim);
    ptx::cp_async_commit();

    uint32_t packed[2][kKeys / 4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float rescale[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = fmaxf(top[m][h], theirs[16 * m + 8 * h]);
      const bool grows = exponentiate_half(s[m], top[m], map.factor, slack, state[m], rescale);
#pragma unroll
      for (int i = 0; i < kKeys / 4; ++i)
        packed[m][i] = ptx::pack_pair<Element>(s[m][2 * i], s[m][2 * i + 1]);
      if (grows) {
#pragma unroll
        for (int i = 0; i < kColumns / 2; ++i) o[m][i] *= rescale[i / 2 % 2];
      }
    }
    store_fragments<kN>(p_tile, row0, key0, packed);
    ptx::cp_async_wait<1>();
    __syncthreads();  // V(n) and P(n) have arrived
    product_packed<Element, kColumns, kD>(o, packed, v_tile + key0 * kD * 2, column0);
    product_shared<Element, 2, kKeys, kN, kColumns, kD>(o, p_tile, row0, other_key0,
                                                        v_tile + other_key0 * kD * 2, column0);
  }

  ptx::cp_async_wait<0>();
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float& sum = state[m].sum[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (lane % 4 == 0) mine[16 * m + 8 * h] = sum;
    }
  __syncthreads();  // the other half's sums have arrived, and Q's tile becomes the staging area of O
  float* lse = static_cast<float*>(p.lse) + tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row +
               tile.row;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // finish_row sums over the quad, but this sum was done above.
      state[m].sum[h] = lane % 4 == 0 ? state[m].sum[h] + theirs[16 * m + 8 * h] : 0.f;
      float value;
      finish_row(state[m], h, map.factor, problem.sink, tile.head, inverse[h], value);
      const int row = row0 + 16 * m + lane / 4 + 8 * h;
      if (half == 0 && lane % 4 == 0 && row < rows) lse[row] = value;
    }
    stage_rows<Element, kD>(q_tile, row0 + 16 * m, o[m], inverse, column0);
  }
  __syncthreads();
  store_tile<kM, kD, Config::kThreads>(
      row_pointer<Element>(p.out, tile.batch, tile.q_row + tile.row, tile.head), p.out.row, q_tile, rows,
      dim_v);
}

}  // namespace plab::ops::attention::sm80
