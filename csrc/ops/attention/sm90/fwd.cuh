// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, int kTileQ_, int kTileKv_, bool kPingPong_>
struct FwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileQ = kTileQ_, kTileKv = kTileKv_, kStages = 2;
  static constexpr bool kPingPong = kPingPong_;
  static constexpr int kConsumers = kTileQ / 64, kThreads = (1 + kConsumers) * kWarpgroup;
  // Registers a thread, out of 65536 for the block: producers need few, consumers hold S, P and O.
  static constexpr int kProducerRegs = kConsumers == 2 ? 24 : 32, kConsumerRegs = kConsumers == 2 ? 240 : 160;
  static constexpr int kBytesQ = kTileQ * kHeadDim * 2, kBytesKv = kTileKv * kHeadDim * 2;
  static constexpr int kSmemBytes = kBytesQ + 2 * kStages * kBytesKv + 256;
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed Hopper's 227 KB per block");
  static_assert(kTileKv % 16 == 0, "P V consumes keys in steps of 16");
};

struct FwdMaps {
  CUtensorMap q, k, v;
};

// attention_fwd_sm90: O = softmax(mask(Q K^T scale)) V and its LSE, on Hopper's wgmma and TMA.
// Mapping   one block per kTileQ query rows of one head: a producer warpgroup whose one thread feeds TMA, and
//           kTileQ / 64 consumer warpgroups of 64 rows. S(n) = Q K(n)^T is issued before O += P(n+1) V(n+1),
//           so the softmax of tile n runs under the second product; with kPingPong the two warpgroups take
//           turns issuing, so that one's products run under the other's softmax. P stays in registers, as the
//           A operand.
// Bytes     2 B (2 Sq H + 2 Sk Hkv) D + 4 B H Sq        Flops  4 B H Sq Sk D, half of it under a causal mask
// Roof      Sk / 2 flop per byte: compute, 989 TFLOP/s dense. At d64 the exponentials (16 a clock and
//           multiprocessor) take as long as the products.
// Contract  attention.h, and sm90::takes.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_fwd_sm90_kernel(const __grid_constant__ FwdParams p, const __grid_constant__ TileGrid grid,
                              const __grid_constant__ FwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kStages = Config::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), k_ring = q_tile + Config::kBytesQ;
  const uint32_t v_ring = k_ring + kStages * Config::kBytesKv, barriers = v_ring + kStages * Config::kBytesKv;
  const uint32_t q_full = barriers, k_full = barriers + 8, v_full = k_full + 8 * kStages;
  const uint32_t k_empty = v_full + 8 * kStages, v_empty = k_empty + 8 * kStages;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int rows = min(kM, tile.q_len - tile.row);
  const Visible visible(problem, tile);
  const int key_begin = visible.low(tile.row) / kN;
  const int key_end = (visible.high(tile.row + rows - 1, tile.k_len) + kN - 1) / kN;

  if (threadIdx.x == 0) {
    ptx::mbarrier_init(q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(k_full + 8 * i, 1);
      ptx::mbarrier_init(v_full + 8 * i, 1);
      ptx::mbarrier_init(k_empty + 8 * i, Config::kConsumers);
      ptx::mbarrier_init(v_empty + 8 * i, Config::kConsumers);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if (threadIdx.x == 0 && key_begin < key_end) {
      const int kv_head = tile.head / (problem.heads / problem.kv_heads);
      Ring<kStages> k, v;
      const auto load = [&](Ring<kStages>& ring, uint32_t base, uint32_t full, uint32_t empty,
                            const CUtensorMap& map, int n) {
        ptx::mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
        tma_load_tile<kN, kD>(base + ring.stage * Config::kBytesKv, map, full + 8 * ring.stage,
                              int(tile.k_row) + n * kN, kv_head, tile.batch);
        ring.advance();
      };
      load(k, k_ring, k_full, k_empty, maps.k, key_end - 1);
      tma_load_tile<kM, kD>(q_tile, maps.q, q_full, int(tile.q_row) + tile.row, tile.head, tile.batch);
      for (int n = key_end - 2; n >= key_begin; --n) {
        load(k, k_ring, k_full, k_empty, maps.k, n);
        load(v, v_ring, v_full, v_empty, maps.v, n + 1);
      }
      load(v, v_ring, v_full, v_empty, maps.v, key_begin);
    }
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegs>();
    // The shuffle tells the compiler that the number is the same in a warp: descriptors then live in uniform
    // registers.
    const int group = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) - 1, lane = int(threadIdx.x & 31);
    const int warp = int(threadIdx.x % kWarpgroup) / 32, band = tile.row + 64 * group + 16 * warp;
    const bool leader = threadIdx.x % kWarpgroup == 0;
    const uint32_t q_rows = q_tile + 64 * 128 * group;
    constexpr int kTurn = 1,
                  kOwn = 4;  // named barriers: kTurn + group, and kOwn + group among a group's own threads
    const auto take_turn = [&] {
      if (Config::kPingPong) ptx::named_barrier_sync(kTurn + group, 2 * kWarpgroup);
    };
    const auto pass_turn = [&] {
      if (Config::kPingPong) ptx::named_barrier_arrive(kTurn + 1 - group, 2 * kWarpgroup);
    };
    if (Config::kPingPong && group == 1) ptx::named_barrier_arrive(kTurn, 2 * kWarpgroup);  // group 0 begins

    const ScoreMap map(problem);
    float o[kD / 2], s[kN / 2];
    uint32_t probability[kN / 16][4];
    RowState state;
    float rescale[2];
    Ring<kStages> k, v;
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) o[i] = 0.f;

    const auto soften = [&](int n) {
      const bool edge =
          (n + 1) * kN > visible.high(tile.row, tile.k_len) || n * kN < visible.low(tile.row + rows - 1);
      if (map.remap) remap_scores(s, map);
      if (edge) mask_scores(s, n * kN, band, visible, tile.k_len);
      online_softmax(s, map.factor, state, rescale);
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < kN / 16; ++i) pack_operand<Element>(probability[i], s, i);
    };
    // With cu_seqlens the rows behind a sequence are its neighbour's: a NaN there must not meet a probability
    // of 0.
    const auto clear_foreign_rows = [&](int n) {
      if (problem.cu_seqlens_k == nullptr || (n + 1) * kN <= tile.k_len) return;
      const uint32_t v_tile = v_ring + v.stage * Config::kBytesKv;
      const int first = tile.k_len - n * kN;
      for (int i = int(threadIdx.x % kWarpgroup); i < (kN - first) * (kD / 8); i += kWarpgroup) {
        const int row = first + i / (kD / 8), piece = i % (kD / 8);
        ptx::store_shared_16(v_tile + (piece / 8) * kN * 128 + row * 128 + (piece % 8) * 16,
                             make_uint4(0, 0, 0, 0));
      }
      ptx::fence_proxy_async();
      ptx::named_barrier_sync(kOwn + group, kWarpgroup);
    };

    if (key_begin < key_end) {
      ptx::mbarrier_wait(q_full, 0);
      ptx::mbarrier_wait(k_full + 8 * k.stage, k.parity);
      take_turn();
      ptx::wgmma_fence();
      issue_nt<Element, kN, kD, kM>(s, q_rows, k_ring + k.stage * Config::kBytesKv);
      pass_turn();
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      if (leader) ptx::mbarrier_arrive(k_empty + 8 * k.stage);
      k.advance();
      soften(key_end - 1);
      pack();

      for (int n = key_end - 2; n >= key_begin; --n) {
        ptx::mbarrier_wait(k_full + 8 * k.stage, k.parity);
        take_turn();
        ptx::wgmma_fence();
        issue_nt<Element, kN, kD, kM>(s, q_rows, k_ring + k.stage * Config::kBytesKv);
        ptx::mbarrier_wait(v_full + 8 * v.stage, v.parity);
        clear_foreign_rows(n + 1);
        ptx::wgmma_fence();
        issue_nn<Element, kD, kN>(o, probability, v_ring + v.stage * Config::kBytesKv);
        pass_turn();
        ptx::wgmma_wait<1>();
        ptx::keep(s);
        if (leader) ptx::mbarrier_arrive(k_empty + 8 * k.stage);
        k.advance();
        soften(n);
        ptx::wgmma_wait_after<0>(state.sum[0] + state.sum[1]);
        ptx::keep(o);
        ptx::keep(probability);
        if (leader) ptx::mbarrier_arrive(v_empty + 8 * v.stage);
        v.advance();
#pragma unroll
        for (int i = 0; i < kD / 2; ++i) o[i] *= rescale[i / 2 % 2];
        pack();
      }
      ptx::mbarrier_wait(v_full + 8 * v.stage, v.parity);
      clear_foreign_rows(key_begin);
      ptx::wgmma_fence();
      issue_nn<Element, kD, kN>(o, probability, v_ring + v.stage * Config::kBytesKv);
      ptx::wgmma_wait<0>();
      ptx::keep(o);
      ptx::keep(probability);
    }

    float inverse[2];
    float* lse =
        static_cast<float*>(p.lse) + tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float value;
      finish_row(state, h, map.factor, problem.sink, tile.head, inverse[h], value);
      const int row = band + lane / 4 + 8 * h;
      if (lane % 4 == 0 && row < tile.q_len) lse[row] = value;
    }
    // Only this group reads its 64 rows of Q, and it is done with them: they become O's staging area.
    stage_rows_sm90<Element, kM, kD>(q_tile, 64 * group, o, inverse);
    ptx::named_barrier_sync(kOwn + group, kWarpgroup);
    store_rows_sm90<kM, kD>(row_pointer<Element>(p.out, tile.batch, tile.q_row + tile.row, tile.head),
                            p.out.row, q_tile, 64 * group, rows, problem.head_dim);
  }
}

template <class Config>
void launch_fwd_config(const FwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
  const int64_t kv_bytes = p.k_len / (p.cu_seqlens_k ? p.batch : 1) * p.head_dim * 4 * p.kv_heads / p.heads;
  const TileGrid grid = make_tile_grid(p, true, Config::kTileQ, kv_bytes);
  const FwdMaps maps{
      make_tensor_map(params.q, p.element, p.head_dim, p.q_len, p.heads, batch, Config::kTileQ),
      make_tensor_map(params.k, p.element, p.head_dim, p.k_len, p.kv_heads, batch, Config::kTileKv),
      make_tensor_map(params.v, p.element, p.head_dim, p.k_len, p.kv_heads, batch, Config::kTileKv)};
  const auto kernel = attention_fwd_sm90_kernel<Config>;
  PLAB_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
  kernel<<<static_cast<unsigned>(blocks(grid)), Config::kThreads, Config::kSmemBytes, stream>>>(params, grid,
                                                                                                maps);
  PLAB_CHECK_LAUNCH();
}

template <int kHeadDim, int kTileQ, int kTileKv, bool kPingPong>
void launch_fwd_element(const FwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch_fwd_config<FwdConfig<__nv_bfloat16, kHeadDim, kTileQ, kTileKv, kPingPong>>(params, stream);
  else
    launch_fwd_config<FwdConfig<__half, kHeadDim, kTileQ, kTileKv, kPingPong>>(params, stream);
}

}  // namespace plab::ops::attention::sm90
