// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/tiles.cuh"

namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, bool kSumDq_>
struct BwdConfig {
  using Element = Element_;
  static constexpr bool kSumDq = kSumDq_;  // false: another kernel computes dQ
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

inline BwdMaps make_bwd_maps(const BwdParams& params, int tile_q, int tile_kv) {
  const Problem& p = params.problem;
  return {make_tensor_map(params.q, p.element, p.head_dim, p.q_len, p.heads, p.batch, tile_q),
          make_tensor_map(params.dout, p.element, p.head_dim, p.q_len, p.heads, p.batch, tile_q),
          make_tensor_map(params.k, p.element, p.head_dim, p.k_len, p.kv_heads, p.batch, tile_kv),
          make_tensor_map(params.v, p.element, p.head_dim, p.k_len, p.kv_heads, p.batch, tile_kv)};
}

// The query tiles that see a key tile, in every query head that shares its key head.
template <class Config>
struct QueryTiles {
  Visible visible;
  int keys, heads, begin, end, steps;
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(visible.low_query(tile.row) / Config::kTileQ),
        end((visible.high_query(tile.row + keys - 1, tile.q_len) + Config::kTileQ - 1) / Config::kTileQ),
        steps(max(0, end - begin) * heads) {}
  // Whether some pair of query tile m and the key tile does not see each other.
  __device__ __forceinline__ bool edge(const Tile& tile, int m) const {
    return tile.row + Config::kTileKv > visible.high(m * Config::kTileQ, tile.k_len) ||
           tile.row < visible.low(m * Config::kTileQ + Config::kTileQ - 1);
  }
};

template <int kStages>
struct QueryBarriers {
  uint32_t kv_full, q_full, do_full, q_empty, do_empty;
  __device__ __forceinline__ explicit QueryBarriers(uint32_t at)
      : kv_full(at),
        q_full(at + 8),
        do_full(q_full + 8 * kStages),
        q_empty(do_full + 8 * kStages),
        do_empty(q_empty + 8 * kStages) {}
  __device__ __forceinline__ void init() const {
    ptx::mbarrier_init(kv_full, 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1 + 32);  // the copy, and the lanes that bring the statistics
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(q_empty + 8 * i, 2);
      ptx::mbarrier_init(do_empty + 8 * i, 2);
    }
    ptx::fence_barrier_init();
  }
};

// The producer warpgroup's work: thread 0 feeds K and V once and the query tiles in turn, lanes of the second
// warp bring LSE log2(e) and delta of the tile's queries.
template <class Config, int kStages>
__device__ __forceinline__ void feed_queries(const BwdParams& p, const Tile& tile,
                                             const QueryTiles<Config>& queries, const BwdMaps& maps,
                                             const QueryBarriers<kStages>& barriers, uint32_t k_tile,
                                             uint32_t v_tile, uint32_t q_ring, uint32_t do_ring,
                                             uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  if (threadIdx.x == 0 && queries.steps > 0) {
    ptx::mbarrier_arrive_expect_tx(barriers.kv_full, 2 * Config::kBytesKv);
#pragma unroll
    for (int chunk = 0; chunk < kD / 64; ++chunk) {
      ptx::tma_load_4d(k_tile + chunk * kN * 128, &maps.k, barriers.kv_full, chunk * 64, tile.row, tile.head,
                       tile.batch);
      ptx::tma_load_4d(v_tile + chunk * kN * 128, &maps.v, barriers.kv_full, chunk * 64, tile.row, tile.head,
                       tile.batch);
    }
    Ring<kStages> ring;
    int head = tile.head * queries.heads, m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
      tma_load_tile<kM, kD>(q_ring + ring.stage * Config::kBytesQ, maps.q, barriers.q_full + 8 * ring.stage,
                            m * kM, head, tile.batch);
      ptx::mbarrier_wait(barriers.do_empty + 8 * ring.stage, ring.parity ^ 1);
      tma_load_tile<kM, kD>(do_ring + ring.stage * Config::kBytesQ, maps.dout,
                            barriers.do_full + 8 * ring.stage, m * kM, head, tile.batch);
      ring.advance();
      if (++m == queries.end) {
        m = queries.begin;
        ++head;
      }
    }
  } else if (threadIdx.x >= 32 && threadIdx.x < 64) {
    const int lane = int(threadIdx.x) - 32;
    Ring<kStages> ring;
    int head = tile.head * queries.heads, m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      const int64_t row = tile.batch * p.rows.batch + head * p.rows.head + m * kM;
      ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
#pragma unroll
      for (int i = lane; i < kM; i += 32) {
        const bool exists = m * kM + i < tile.q_len;  // a query that does not exist has probability 2^-inf
        const float lse = exists ? static_cast<const float*>(p.lse_log2)[row + i] : INFINITY;
        const float delta = exists ? static_cast<const float*>(p.delta)[row + i] : 0.f;
        const uint32_t at = statistics + ring.stage * Config::kStatistics + i * 4;
        ptx::store_shared(at, __float_as_uint(lse));
        ptx::store_shared(at + kM * 4, __float_as_uint(delta));
      }
      ptx::mbarrier_arrive(barriers.q_full + 8 * ring.stage);
      ring.advance();
      if (++m == queries.end) {
        m = queries.begin;
        ++head;
      }
    }
  }
}

// P = exp2(factor S - LSE log2(e)) on a fragment with queries along its columns.
template <int kRegs>
__device__ __forceinline__ void probabilities(float (&s)[kRegs], uint32_t lse_log2, int pair, float factor) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 lse = ptx::load_shared_float2(lse_log2 + (2 * i + pair) * 4);
    s[i] = ptx::ex2_approx_ftz(s[i] * factor - lse.x);
    s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - lse.y);
    s[i + 2] = ptx::ex2_approx_ftz(s[i + 2] * factor - lse.x);
    s[i + 3] = ptx::ex2_approx_ftz(s[i + 3] * factor - lse.y);
  }
}

// dS = P (dP - delta), in dP's place.
template <int kRegs>
__device__ __forceinline__ void slopes(float (&dp)[kRegs], const float (&s)[kRegs], uint32_t deltas,
                                       int pair) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 delta = ptx::load_shared_float2(deltas + (2 * i + pair) * 4);
    dp[i] = s[i] * (dp[i] - delta.x);
    dp[i + 1] = s[i + 1] * (dp[i + 1] - delta.y);
    dp[i + 2] = s[i + 2] * (dp[i + 2] - delta.x);
    dp[i + 3] = s[i + 3] * (dp[i + 3] - delta.y);
  }
}

// P becomes 0 where key and query do not see each other; `key` and `query` are those of register 0.
template <int kRegs>
__device__ __forceinline__ void clear_unseen(float (&s)[kRegs], const Visible& visible, const Tile& tile,
                                             int key, int query) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int low = visible.low_query(key + 8 * h) - query;
    const int high = visible.high_query(key + 8 * h, tile.q_len) - query;
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      const int column = 2 * (i - 2 * h);
      if (column < low || column >= high) s[i] = 0.f;
      if (column + 1 < low || column + 1 >= high) s[i + 1] = 0.f;
    }
  }
}

// dQ is summed in fp32 in the order of the accumulator's registers, so that a warp adds 512 consecutive bytes
// at a time. Float4 `quad` of thread `thread` of warpgroup `group` in tile `tile`:
template <class Config>
__device__ __forceinline__ int64_t dq_sum_offset(int64_t tile, int group, int quad, int thread) {
  return (((tile * 2 + group) * (Config::kSumRegs / 4) + quad) * kWarpgroup + thread) * 4;
}

// attention_bwd_sm90: dK and dV of 128 keys of one head, and what they add to dQ, on Hopper's wgmma and TMA.
// Mapping   one block per key tile and key head. A producer warpgroup streams the query tiles of every query
//           head that shares the key head; two consumer warpgroups own 64 keys each. S^T = K Q^T and
//           dP^T = V dO^T put keys on the rows, so P^T and dS^T are register operands of dV += P^T dO and
//           dK += dS^T Q. dS^T also goes to shared memory, where both warpgroups read it as the (transposed)
//           A operand of dQ = dS K, half of the columns each; dQ is added to an fp32 sum in L2.
// Bytes     per query tile 4 kTileQ D from L2 and 4 kTileQ D of fp32 additions       Flops  10 B H Sq Sk D
// Roof      shared memory: about 350 KB per tile pair at d128, 2700 cycles, against 2560 of the tensor cores.
// Contract  attention.h, sm90::takes, fixed lengths, scale > 0 and no softcap; dq_sum zeroed where kSumDq.
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
  const QueryBarriers<kStages> barriers(statistics + kStages * Config::kStatistics);

  const Problem& problem = p.problem;
  const Tile tile = find_tile(problem, grid, false, blockIdx.x);
  const QueryTiles<Config> queries(problem, tile);
  const int query_tiles = (tile.q_len + kM - 1) / kM;
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    feed_queries<Config>(p, tile, queries, maps, barriers, k_tile, v_tile, q_ring, do_ring, statistics);
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
  int head = tile.head * queries.heads, m = queries.begin;
  if (queries.steps > 0) ptx::mbarrier_wait(barriers.kv_full, 0);
  for (int step = 0; step < queries.steps; ++step) {
    const uint32_t q_tile = q_ring + ring.stage * Config::kBytesQ,
                   do_tile = do_ring + ring.stage * Config::kBytesQ;
    const uint32_t ds_tile = ds_tiles + (step & 1) * Config::kBytesDs,
                   stats = statistics + ring.stage * Config::kStatistics;
    ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(s, k_rows, q_tile);
    ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_nt<Element, kM, kD, kN>(dp, v_rows, do_tile);
    ptx::wgmma_wait<1>();
    ptx::keep(s);

    probabilities(s, stats, pair, factor);
    if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, tile.row + row0, m * kM + pair);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(probability[i], s, i);
    ptx::wgmma_wait<0>();  // wgmma_wait_after is slower here: the other warpgroup fills the gap
    ptx::keep(dp);
    slopes(dp, s, stats + kM * 4, pair);
    ptx::wgmma_fence();
    issue_nn<Element, kD, kM>(dv, probability, do_tile);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) pack_operand<Element>(slope[i], dp, i);
    if constexpr (Config::kSumDq) {
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
    }
    ptx::wgmma_fence();
    issue_nn<Element, kD, kM>(dk, slope, q_tile);

    ptx::wgmma_wait<1>();  // all but dK
    ptx::keep(dv);
    ptx::keep(probability);
    if (thread == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
    if constexpr (Config::kSumDq) {
      ptx::keep(dq);
      const int64_t sum_tile = (int64_t{tile.batch} * problem.heads + head) * query_tiles + m;
      float* sum = p.dq_sum + dq_sum_offset<Config>(sum_tile, group, 0, thread);
#pragma unroll
      for (int i = 0; i < Config::kSumRegs; i += 4)
        ptx::reduce_add_4(sum + i * kWarpgroup, dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
    ptx::wgmma_wait<0>();
    ptx::keep(dk);
    ptx::keep(slope);
    if constexpr (!Config::kSumDq)
      ptx::named_barrier_sync(kOwn + group, kWarpgroup);  // statistics have been read
    if (thread == 0) ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
    ring.advance();
    if (++m == queries.end) {
      m = queries.begin;
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
                          64 * group, queries.keys, problem.head_dim);
  store_rows_sm90<kN, kD>(row_pointer<Element>(p.dv, tile.batch, tile.row, tile.head), p.dv.row, v_tile,
                          64 * group, queries.keys, problem.head_dim);
}

// attention_bwd_sm90_finish: dQ = scale dq_sum, back in rows. One block per query tile; memory, 6 bytes an
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
  if (Config::kSumDq)
    PLAB_CUDA_CHECK(cudaMemsetAsync(
        params.dq_sum, 0, static_cast<size_t>(sums) * Config::kTileQ * Config::kHeadDim * 4, stream));
  if (blocks(grid) > 0) {
    const BwdMaps maps = make_bwd_maps(params, Config::kTileQ, Config::kTileKv);
    const auto kernel = attention_bwd_sm90_kernel<Config>;
    PLAB_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
    kernel<<<static_cast<unsigned>(blocks(grid)), Config::kThreads, Config::kSmemBytes, stream>>>(params,
                                                                                                  grid, maps);
    PLAB_CHECK_LAUNCH();
  }
  if constexpr (Config::kSumDq) {
    attention_bwd_sm90_finish_kernel<Config>
        <<<static_cast<unsigned>(sums), 2 * kWarpgroup, 0, stream>>>(params, query_tiles);
    PLAB_CHECK_LAUNCH();
  }
}

}  // namespace plab::ops::attention::sm90
