// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_>
struct BwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileKv = 128, kTileQ = 64, kStages = 2;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = kHeadDim == 128 ? 24 : 40,
                       kConsumerRegs = kHeadDim == 128 ? 240 : 232;
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2,
                       kBytesDs = kTileKv * kTileQ * 2;
  static constexpr int kStatistics = 2 * kTileQ * 4;  // LSE·log2e and delta of a stage's queries
  static constexpr int kSmemBytes =
      2 * kBytesKv + 2 * kStages * kBytesQ + 2 * kBytesDs + kStages * kStatistics + 256;
  static constexpr int kSumColumns = kHeadDim / 2,
                       kSumRegs = kSumColumns / 2;  // each warpgroup's share of dQ
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed Hopper's 227 KB per block");
};

struct BwdMaps {
  CUtensorMap q, dout, k, v;
};

// dQ is summed in fp32 in the order of the accumulator's registers, so that a warp adds 512 consecutive bytes
// at a time. Float4 `quad` of thread `thread` of warpgroup `group` in tile `tile`:
template <class Config>
__device__ __forceinline__ int64_t dq_sum_offset(int64_t tile, int group, int quad, int thread) {
  return (((tile * 2 + group) * (Config::kSumRegs / 4) + quad) * kWarpgroup + thread) * 4;
}

// attention_bwd_sm90: dK and dV of 128 keys of one head, and what they add to dQ, on Hopper's wgmma and TMA.
// Mapping   one block per key tile and key head; a producer warpgroup streams the query tiles of every query
// head that shares
//           the key head, two consumer warpgroups own 64 keys each. Sᵀ = K Qᵀ and dPᵀ = V dOᵀ put keys on the
//           rows, so Pᵀ and dSᵀ are register operands of dV += Pᵀ dO and dK += dSᵀ Q. dSᵀ also goes to shared
//           memory, where both warpgroups read it as the (transposed) A operand of dQ = dS K, a quarter of 64
//           x 64 each; dQ is added to an fp32 sum in L2.
// Bytes     per query tile 4·kTileQ·D from L2 and 4·kTileQ·D of fp32 additions     Flops  10·B·H·Sq·Sk·D
// Roof      shared memory: about 350 KB a tile pair at d128 against 2560 tensor cycles.
// Contract  attention.h, sm90::takes, fixed lengths, scale > 0 and no softcap; dq_sum zeroed.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_sm90_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ TileGrid grid,
                              const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kStages = Config::kStages;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t q_ring = v_tile + Config::kBytesKv, do_ring = q_ring + kStages * Config::kBytesQ;
  const uint32_t ds_tiles = do_ring + kStages * Config::kBytesQ, statistics = ds_tiles + 2 * Config::kBytesDs;
  const uint32_t kv_full = statistics + kStages * Config::kStatistics, q_full = kv_full + 8,
                 do_full = q_full + 8 * kStages;
  const uint32_t q_empty = do_full + 8 * kStages, do_empty = q_empty + 8 * kStages;

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  const int keys = min(kN, tile.k_len - tile.row), heads = problem.heads / problem.kv_heads;
  const Visible visible(problem, tile);
  const int query_begin = visible.low_query(tile.row) / kM;
  const int query_end = (visible.high_query(tile.row + keys - 1, tile.q_len) + kM - 1) / kM;
  const int tiles = max(0, query_end - query_begin), steps = tiles * heads;
  const int query_tiles = (tile.q_len + kM - 1) / kM;

  if (threadIdx.x == 0) {
    ptx::mbarrier_init(kv_full, 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1 + 32);  // the copy, and the lanes that bring the statistics
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 2);
      ptx::mbarrier_init(do_empty + 8 * i, 2);
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if (threadIdx.x == 0 && steps > 0) {
      ptx::mbarrier_arrive_expect_tx(kv_full, 2 * Config::kBytesKv);
#pragma unroll
      for (int chunk = 0; chunk < kD / 64; ++chunk) {
        ptx::tma_load_4d(k_tile + chunk * kN * 128, &maps.k, kv_full, chunk * 64, tile.row, tile.head,
                         tile.batch);
        ptx::tma_load_4d(v_tile + chunk * kN * 128, &maps.v, kv_full, chunk * 64, tile.row, tile.head,
                         tile.batch);
      }
      Ring<kStages> ring;
      int head = tile.head * heads, m = query_begin;
      for (int step = 0; step < steps; ++step) {
        ptx::mbarrier_wait(q_empty + 8 * ring.stage, ring.parity ^ 1);
        tma_load_tile<kM, kD>(q_ring + ring.stage * Config::kBytesQ, maps.q, q_full + 8 * ring.stage, m * kM,
                              head, tile.batch);
        ptx::mbarrier_wait(do_empty + 8 * ring.stage, ring.parity ^ 1);
        tma_load_tile<kM, kD>(do_ring + ring.stage * Config::kBytesQ, maps.dout, do_full + 8 * ring.stage,
                              m * kM, head, tile.batch);
        ring.advance();
        if (++m == query_end) {
          m = query_begin;
          ++head;
        }
      }
    } else if (threadIdx.x >= 32 && threadIdx.x < 64) {
      const int lane = int(threadIdx.x) - 32;
      Ring<kStages> ring;
      int head = tile.head * heads, m = query_begin;
      for (int step = 0; step < steps; ++step) {
        const int64_t row = tile.batch * p.rows.batch + head * p.rows.head + m * kM;
        ptx::mbarrier_wait(q_empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll
        for (int i = lane; i < kM; i += 32) {
          const bool exists = m * kM + i < tile.q_len;  // a query that does not exist has probability 2^-inf
          const float lse = exists ? static_cast<const float*>(p.lse_log2)[row + i] : INFINITY;
          const float delta = exists ? static_cast<const float*>(p.delta)[row + i] : 0.f;
          const uint32_t at = statistics + ring.stage * Config::kStatistics + i * 4;
          ptx::store_shared(at, __float_as_uint(lse));
          ptx::store_shared(at + kM * 4, __float_as_uint(delta));
        }
        ptx::mbarrier_arrive(q_full + 8 * ring.stage);
        ring.advance();
        if (++m == query_end) {
          m = query_begin;
          ++head;
        }
      }
    }
    return;
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) - 1,
            thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int row0 = 64 * group + 16 * (thread / 32) + lane / 4,
            pair = 2 * (lane % 4);  // this thread's first key and query
  const uint32_t k_rows = k_tile + 64 * 128 * group, v_rows = v_tile + 64 * 128 * group;
  constexpr int kBoth = 1, kOwn = 2;  // named barriers

  const float factor = float(problem.scale) * kLog2e;
  float dk[kD / 2], dv[kD / 2], s[kM / 2], dp[kM / 2], dq[Config::kSumRegs];
  uint32_t probability[kM / 16][4], slope[kM / 16][4];
#pragma unroll
  for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.f;

  Ring<kStages> ring;
  int head = tile.head * heads, m = query_begin;
  if (steps > 0) ptx::mbarrier_wait(kv_full, 0);
  for (int step = 0; step < steps; ++step) {
    const uint32_t q_tile = q_ring + ring.stage * Config::kBytesQ,
                   do_tile = do_ring + ring.stage * Config::kBytesQ;
    const uint32_t ds_tile = ds_tiles + (step & 1) * Config::kBytesDs,
                   stats = statistics + ring.stage * Config::kStatistics;
    ptx::mbarrier_wait(q_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(s, k_rows, q_tile);
    ptx::mbarrier_wait(do_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(dp, v_rows, do_tile);
    ptx::wgmma_wait<1>();
    ptx::keep(s);

    const bool edge =
        tile.row + kN > visible.high(m * kM, tile.k_len) || tile.row < visible.low(m * kM + kM - 1);
#pragma unroll
    for (int i = 0; i < kM / 2; i += 4) {
      const float2 lse = ptx::load_shared_float2(stats + (2 * i + pair) * 4);
      s[i] = ptx::ex2_approx_ftz(s[i] * factor - lse.x);
      s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - lse.y);
      s[i + 2] = ptx::ex2_approx_ftz(s[i + 2] * factor - lse.x);
      s[i + 3] = ptx::ex2_approx_ftz(s[i + 3] * factor - lse.y);
    }
    if (edge) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int key = tile.row + row0 + 8 * h, first = m * kM + pair;
        const int low = visible.low_query(key) - first, high = visible.high_query(key, tile.q_len) - first;
#pragma unroll
        for (int i = 2 * h; i < kM / 2; i += 4) {
          if (2 * (i - 2 * h) < low || 2 * (i - 2 * h) >= high) s[i] = 0.f;
          if (2 * (i - 2 * h) + 1 < low || 2 * (i - 2 * h) + 1 >= high) s[i + 1] = 0.f;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(probability[i], s, i);
    ptx::wgmma_wait<0>();
    ptx::keep(dp);
#pragma unroll
    for (int i = 0; i < kM / 2; i += 4) {
      const float2 delta = ptx::load_shared_float2(stats + (kM + 2 * i + pair) * 4);
      dp[i] = s[i] * (dp[i] - delta.x);
      dp[i + 1] = s[i + 1] * (dp[i + 1] - delta.y);
      dp[i + 2] = s[i + 2] * (dp[i + 2] - delta.x);
      dp[i + 3] = s[i + 3] * (dp[i + 3] - delta.y);
    }
    ptx::wgmma_fence();
    issue_nn<Element, kD, kM>(dv, probability, do_tile);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(slope[i], dp, i);
    // dSᵀ, keys by queries, in chunks of 64 queries.
#pragma unroll
    for (int i = 0; i < kM / 2; i += 2) {
      const int key = row0 + 8 * (i / 2 % 2), piece = i / 4;
      ptx::store_shared(
          ds_tile + (piece / 8) * kN * 128 + key * 128 + (((piece % 8) ^ (key & 7)) << 4) + 2 * pair,
          slope[i / 8][i / 2 % 4]);
    }
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);

    // dQ: all 64 queries, this warpgroup's half of the columns.
    const uint32_t k_columns = k_tile + (kD == 128 ? group * kN * 128 : group * 64);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kN / 16; ++i)
      ptx::Wgmma<Element, Config::kSumColumns, true, true>::ss(
          dq, ptx::descriptor_mn_major(ds_tile + i * 2048, kN * 128),
          ptx::descriptor_mn_major(k_columns + i * 2048, kN * 128), i > 0);
    ptx::wgmma_commit();
    issue_nn<Element, kD, kM>(dk, slope, q_tile);

    const int64_t sum_tile = (int64_t{tile.batch} * problem.heads + head) * query_tiles + m;
    ptx::wgmma_wait<1>();
    ptx::keep(dv);
    ptx::keep(probability);
    ptx::keep(dq);
    if (thread == 0) ptx::mbarrier_arrive(do_empty + 8 * ring.stage);
    float* sum = p.dq_sum + dq_sum_offset<Config>(sum_tile, group, 0, thread);
#pragma unroll
    for (int i = 0; i < Config::kSumRegs; i += 4)
      ptx::reduce_add_4(sum + i * kWarpgroup, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    ptx::wgmma_wait<0>();
    ptx::keep(dk);
    ptx::keep(slope);
    if (thread == 0) ptx::mbarrier_arrive(q_empty + 8 * ring.stage);
    ring.advance();
    if (++m == query_end) {
      m = query_begin;
      ++head;
    }
  }

  // Every product has been waited for by both groups once they meet here; K's and V's tiles become the
  // staging area.
  ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);
  const float scale = float(problem.scale), scales[2] = {scale, scale}, ones[2] = {1.f, 1.f};
  stage_rows_sm90<Element, kN, kD>(k_tile, 64 * group, dk, scales);
  stage_rows_sm90<Element, kN, kD>(v_tile, 64 * group, dv, ones);
  ptx::named_barrier_sync(kOwn + group, kWarpgroup);
  store_rows_sm90<kN, kD>(row_pointer<Element>(p.dk, tile.batch, tile.row, tile.head), p.dk.row, k_tile,
                          64 * group, keys, problem.head_dim);
  store_rows_sm90<kN, kD>(row_pointer<Element>(p.dv, tile.batch, tile.row, tile.head), p.dv.row, v_tile,
                          64 * group, keys, problem.head_dim);
}

// attention_bwd_sm90_finish: dQ = scale · dq_sum, back in rows. One block per query tile; memory, 6 bytes an
// element.
template <class Config>
__global__ void __launch_bounds__(2 * kWarpgroup)
    attention_bwd_sm90_finish_kernel(const __grid_constant__ BwdParams p, int query_tiles) {
  using Element = typename Config::Element;
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const int m = int(blockIdx.x % uint32_t(query_tiles)), slice = int(blockIdx.x / uint32_t(query_tiles));
  const int head = slice % p.problem.heads, batch = slice / p.problem.heads;
  const float scale = float(p.problem.scale);
  const float* sum = p.dq_sum + dq_sum_offset<Config>(blockIdx.x, group, 0, thread);
#pragma unroll
  for (int j = 0; j < Config::kSumRegs / 4; ++j) {
    const float4 v = *reinterpret_cast<const float4*>(sum + j * 4 * kWarpgroup);
    const int column = Config::kSumColumns * group + 8 * j + 2 * (lane % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = m * Config::kTileQ + 16 * (thread / 32) + lane / 4 + 8 * h;
      if (row < p.problem.q_len && column < p.problem.head_dim)
        *reinterpret_cast<uint32_t*>(row_pointer<Element>(p.dq, batch, row, head) + column) =
            ptx::pack_pair<Element>((h ? v.z : v.x) * scale, (h ? v.w : v.y) * scale);
    }
  }
}

template <class Config>
void launch_bwd_config(const BwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const TileGrid grid =
      make_tile_grid(p, false, Config::kTileKv, p.q_len * p.head_dim * 8 * (p.heads / p.kv_heads));
  const int query_tiles = static_cast<int>((p.q_len + Config::kTileQ - 1) / Config::kTileQ);
  const int64_t sums = int64_t{p.batch} * p.heads * query_tiles;
  PLAB_CUDA_CHECK(cudaMemsetAsync(params.dq_sum, 0,
                                  static_cast<size_t>(sums) * Config::kTileQ * Config::kHeadDim * 4, stream));
  if (blocks(grid) > 0) {
    const BwdMaps maps{
        make_tensor_map(params.q, p.element, p.head_dim, p.q_len, p.heads, p.batch, Config::kTileQ),
        make_tensor_map(params.dout, p.element, p.head_dim, p.q_len, p.heads, p.batch, Config::kTileQ),
        make_tensor_map(params.k, p.element, p.head_dim, p.k_len, p.kv_heads, p.batch, Config::kTileKv),
        make_tensor_map(params.v, p.element, p.head_dim, p.k_len, p.kv_heads, p.batch, Config::kTileKv)};
    const auto kernel = attention_bwd_sm90_kernel<Config>;
    PLAB_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
    kernel<<<static_cast<unsigned>(blocks(grid)), Config::kThreads, Config::kSmemBytes, stream>>>(params,
                                                                                                  grid, maps);
    PLAB_CHECK_LAUNCH();
  }
  attention_bwd_sm90_finish_kernel<Config>
      <<<static_cast<unsigned>(sums), 2 * kWarpgroup, 0, stream>>>(params, query_tiles);
  PLAB_CHECK_LAUNCH();
}

template <int kHeadDim>
void launch_bwd_element(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch_bwd_config<BwdConfig<__nv_bfloat16, kHeadDim>>(params, stream);
  else
    launch_bwd_config<BwdConfig<__half, kHeadDim>>(params, stream);
}

// One translation unit per head dim (bwd_d*.cu).
void launch_bwd_d64(const BwdParams& params, cudaStream_t stream);
void launch_bwd_d128(const BwdParams& params, cudaStream_t stream);

}  // namespace plab::ops::attention::sm90
