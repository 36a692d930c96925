// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "cuda/ptx/dependent_launch.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/bwd_softmax.cuh"
#include "ops/attention/sm90/epilogue.cuh"
#include "ops/attention/sm90/gemm.cuh"

// The backward for compute capability 9.0 above head_dim 128: dQ. kv_kernel.cuh computes dK and dV.
namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, int kHeadDimV_, int kTileKv_, bool kSoftcap_>
struct BwdQConfig {
  using Element = Element_;
  static constexpr bool kSoftcap = kSoftcap_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_, kTileQ = 128, kTileKv = kTileKv_;
  static constexpr bool kAhead =
      kHeadDim < 256;  // the next tile's scores are computed under this tile's product
  static constexpr int kStagesK = kAhead ? 3 : 2, kStagesV = kAhead ? 2 : 1;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = 24, kConsumerRegs = 240;
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesDo = kTileQ * kHeadDimV * 2;
  static constexpr int kBytesK = kTileKv * kHeadDim * 2, kBytesV = kTileKv * kHeadDimV * 2;
  static constexpr int kSmemBytes = kBytesQ + kBytesDo + kStagesK * kBytesK + kStagesV * kBytesV + 256;
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed the 227 KB of a block");
};

// attention_bwd_query_sm90: dQ of 128 queries of one head; the forward's loop with dS in place of P.
// Mapping   one block per query tile and head: a producer warp, two consumer warpgroups of 64 queries. dS is
//           the register operand of dQ += dS K. Every dQ has one owner: no atomics, the same bits every run.
// Bytes     4 kTileQ D, plus 4 kTileKv D per key tile from L2      Flops  6 B H Sq Sk D       Roof  compute
// Contract  attention.h, sm90/launch.h, scale > 0.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_query_sm90_kernel(const __grid_constant__ BwdParams p,
                                    const __grid_constant__ TileGrid grid,
                                    const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kDv = Config::kHeadDimV, kM = Config::kTileQ, kN = Config::kTileKv;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), do_tile = q_tile + Config::kBytesQ;
  const uint32_t k_ring = do_tile + Config::kBytesDo, v_ring = k_ring + Config::kStagesK * Config::kBytesK;
  const uint32_t q_full = v_ring + Config::kStagesV * Config::kBytesV, do_full = q_full + 8;
  const uint32_t k_full = do_full + 8, k_empty = k_full + 8 * Config::kStagesK;
  const uint32_t v_full = k_empty + 8 * Config::kStagesK, v_empty = v_full + 8 * Config::kStagesV;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  // The kernel before has seen the end of the one that computes the statistics. Its own end is waited for last, so
  // that what follows this kernel follows both.
  if (!tile.valid) return ptx::wait_for_previous_grid();
  const int rows = min(kM, tile.q_len - tile.row);
  const Visible visible(problem, tile);
  const int key_begin = visible.low(tile.row) / kN;
  const int key_end = (visible.high(tile.row + rows - 1, tile.k_len) + kN - 1) / kN;

  if (threadIdx.x == 0) {
    ptx::mbarrier_init(q_full, 1);
    ptx::mbarrier_init(do_full, 1);
    for (int i = 0; i < Config::kStagesK; ++i) {
      ptx::mbarrier_init(k_full + 8 * i, 1);
      ptx::mbarrier_init(k_empty + 8 * i, 2);
    }
    for (int i = 0; i < Config::kStagesV; ++i) {
      ptx::mbarrier_init(v_full + 8 * i, 1);
      ptx::mbarrier_init(v_empty + 8 * i, 2);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if (threadIdx.x != 0) return;
    if (key_begin >= key_end) return ptx::wait_for_previous_grid();
    const int kv_head = tile.head / (problem.heads / problem.kv_heads);
    Ring<Config::kStagesK> k;
    Ring<Config::kStagesV> v;
    const RowBox queries = row_box<kM>(problem, tile, tile.q_row, tile.q_len, tile.row);
    tma_load_tile<kM, kD>(q_tile, maps.q, q_full, queries.row, tile.head, queries.batch);
    for (int n = key_end - 1; n >= key_begin; --n) {
      const RowBox keys = row_box<kN>(problem, tile, tile.k_row, tile.k_len, n * kN);
      ptx::mbarrier_wait(k_empty + 8 * k.stage, k.parity ^ 1);
      tma_load_tile<kN, kD>(k_ring + k.stage * Config::kBytesK, maps.k, k_full + 8 * k.stage, keys.row,
                            kv_head, keys.batch);
      k.advance();
      if (n == key_end - 1)
        tma_load_tile<kM, kDv>(do_tile, maps.dout, do_full, queries.row, tile.head, queries.batch);
      ptx::mbarrier_wait(v_empty + 8 * v.stage, v.parity ^ 1);
      tma_load_tile<kN, kDv>(v_ring + v.stage * Config::kBytesV, maps.v, v_full + 8 * v.stage, keys.row,
                             kv_head, keys.batch);
      v.advance();
    }
    return ptx::wait_for_previous_grid();
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) - 1, lane = int(threadIdx.x & 31);
  const int band =
      tile.row + 64 * group + 16 * (int(threadIdx.x % kWarpgroup) / 32);  // the warp's first query
  const bool leader = threadIdx.x % kWarpgroup == 0;
  const uint32_t q_rows = q_tile + 64 * 128 * group, do_rows = do_tile + 64 * 128 * group;
  constexpr int kOwn = 2;  // named barriers of each group's own
  const float factor = float(problem.scale) * kLog2e;
  const ScoreMap map(problem);
  float dq[kD / 2], s[kN / 2], dp[kN / 2], lse[2] = {INFINITY, INFINITY}, delta[2] = {};
  uint32_t slope[kN / 16][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) dq[i] = 0.f;
  const int64_t statistics = tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = band + lane / 4 + 8 * h;
    if (row >= tile.q_len) continue;
    lse[h] = static_cast<const float*>(p.lse_log2)[statistics + row];
    delta[h] = static_cast<const float*>(p.delta)[statistics + row];
  }

  Ring<Config::kStagesK> k, held;  // `held` is the key tile that dQ still has to be multiplied with
  Ring<Config::kStagesV> v;
  const auto add_product = [&] {
    ptx::wgmma_fence();
    issue_nn<Element, kD, kN>(dq, slope, k_ring + held.stage * Config::kBytesK);
  };
  const auto end_product = [&] {
    ptx::keep(dq);
    ptx::keep(slope);
    if (leader) ptx::mbarrier_arrive(k_empty + 8 * held.stage);
    held.advance();
  };
  // dS of key tile n. The product of the previous tile, if it is still pending, overlaps with it.
  const auto step = [&](auto first, int n) {
    constexpr int kHeld = Config::kAhead && !decltype(first)::value;
    ptx::mbarrier_wait(k_full + 8 * k.stage, k.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kN, kD, kM>(s, q_rows, k_ring + k.stage * Config::kBytesK);
    ptx::mbarrier_wait(v_full + 8 * v.stage, v.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kN, kDv, kM>(dp, do_rows, v_ring + v.stage * Config::kBytesV);
    if constexpr (kHeld) add_product();
    ptx::wgmma_wait<1 + kHeld>();
    ptx::keep(s);
    if ((n + 1) * kN > visible.high(tile.row, tile.k_len) || n * kN < visible.low(tile.row + rows - 1))
      mask_scores(s, n * kN, band, visible, tile.k_len);
    [[maybe_unused]] uint32_t bend[kN / 16][4];
    if constexpr (Config::kSoftcap) {
#pragma unroll
      for (int i = 0; i < kN / 2; i += 2) {
        // A score that the mask removed is -inf: its tanh is -1, so it is handled first.
        const float x = tanh_fast(s[i] * map.inner), y = tanh_fast(s[i + 1] * map.inner);
        s[i] = s[i] == -INFINITY ? 0.f : ptx::ex2_approx_ftz(map.outer * x - lse[i / 2 % 2]);
        s[i + 1] = s[i + 1] == -INFINITY ? 0.f : ptx::ex2_approx_ftz(map.outer * y - lse[i / 2 % 2]);
        bend[i / 8][i / 2 % 4] = ptx::pack_pair<Element>(1.f - x * x, 1.f - y * y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) s[i] = ptx::ex2_approx_ftz(s[i] * factor - lse[i / 2 % 2]);
    }
    ptx::wgmma_wait_after<kHeld>(all_of(s));
    ptx::keep(dp);
    if (leader) ptx::mbarrier_arrive(v_empty + 8 * v.stage);
    v.advance();
    k.advance();
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) dp[i] = s[i] * (dp[i] - delta[i / 2 % 2]);
    if constexpr (Config::kSoftcap) multiply_packed<Element>(dp, bend);
    if constexpr (kHeld) {
      ptx::wgmma_wait<0>();
      end_product();
    }
#pragma unroll
    for (int i = 0; i < kN / 16; ++i) pack_operand<Element>(slope[i], dp, i);
    if constexpr (!Config::kAhead) {
      add_product();
      ptx::wgmma_wait<0>();
      end_product();
    }
  };
  if (key_begin < key_end) {
    ptx::mbarrier_wait(q_full, 0);
    ptx::mbarrier_wait(do_full, 0);
    step(std::true_type{}, key_end - 1);
    for (int n = key_end - 2; n >= key_begin; --n) step(std::false_type{}, n);
    if constexpr (Config::kAhead) {
      add_product();
      ptx::wgmma_wait<0>();
      end_product();
    }
  }

  // Only this group reads its 64 rows of Q: they become the staging area.
  const float scale = float(problem.scale), scales[2] = {scale, scale};
  ptx::named_barrier_sync(kOwn + group, kWarpgroup);
  stage_rows<Element, kM, kD>(q_tile, 64 * group, dq, scales);
  ptx::named_barrier_sync(kOwn + group, kWarpgroup);
  store_rows<kM, kD>(row_pointer<Element>(p.dq, tile.batch, tile.q_row + tile.row, tile.head), p.dq.row,
                     q_tile, 64 * group, rows, problem.head_dim);
}

}  // namespace plab::ops::attention::sm90
