// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/dependent_launch.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/bwd_epilogue.cuh"
#include "ops/attention/sm90/bwd_load.cuh"
#include "ops/attention/sm90/bwd_softmax.cuh"
#include "ops/attention/sm90/gemm.cuh"

// The backward for compute capability 9.0, up to head_dim 128.
namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_, int kTileQ_, bool kSoftcap_>
struct BwdConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kTileKv = 128, kTileQ = kTileQ_, kStages = 2;
  static constexpr bool kSoftcap = kSoftcap_;
  // The products themselves subtract LSE and delta, which are three more columns of Q and dO. At d64 another step
  // of 16 columns costs too much compared with 64, and softcap needs the plain scores.
  static constexpr bool kProduct = kHeadDim == 128 && !kSoftcap;
  static constexpr int kThreads = 3 * kWarpgroup, kProducerRegs = kHeadDim == 128 ? 24 : 40,
                       kConsumerRegs = kHeadDim == 128 ? 240 : 232;
  static constexpr int kBytesKv = kTileKv * kHeadDim * 2, kBytesQ = kTileQ * kHeadDim * 2,
                       kBytesDs = kTileKv * kTileQ * 2;
  static constexpr int kStatistics =
      kTileQ * (kProduct ? 16 : 8);  // bytes: LSE and delta of a stage's queries
  // A warpgroup's part of dQ: half of the columns of 64 queries, or all columns of half of 128 queries.
  static constexpr int kSumColumns = kTileQ == 64 ? kHeadDim / 2 : kHeadDim, kSumRegs = kSumColumns / 2;
  static constexpr int kBytesSum = kSumRegs * kWarpgroup * 4;
  static constexpr bool kSumLate = kHeadDim == 64;  // dQ is handed over under the next step's products
  // Three pieces of 128 bytes; compute-sanitizer takes each of the two operands among them for 2 KB.
  static constexpr int kBytesOnes = kProduct ? 128 + 2048 : 0;
  static constexpr int kSmemBytes = 2 * kBytesKv + kStages * (2 * kBytesQ + kStatistics) + 2 * kBytesDs +
                                    2 * kBytesSum + kBytesOnes + KeyTiles::kBytes + 96;
  static_assert(kSmemBytes <= 227 * 1024, "tiles and stages exceed the 227 KB of a block");
};

// attention_bwd_sm90: dK and dV of 128 keys of one head, and what they add to dQ, by wgmma and TMA.
// Mapping   a persistent kernel: blocks take one key tile after the other. One producer warp streams the query tiles of every query
//           head that shares the key head; two consumer warpgroups own 64 keys each. S^T = K Q^T and
//           dP^T = V dO^T put keys on the rows, so P^T and dS^T are register operands of dV += P^T dO and
//           dK += dS^T Q. dS also goes to shared memory, in rows of queries, where both warpgroups read it
//           for dQ = dS K, half of the columns (or of 128 queries) each. Two warps that do nothing else add dQ
//           from shared memory to an fp32 accumulator in L2.
// Bytes     per query tile 4 kTileQ D from L2 and 4 kTileQ D of fp32 additions       Flops  10 B H Sq Sk D
// Roof      shared memory: about 400 KB per tile pair at d128, 3100 cycles, against 2690 of the tensor cores.
// Contract  attention.h, sm90/launch.h, scale > 0; dq_accum as BwdWorkspace has it.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_bwd_sm90_kernel(const __grid_constant__ BwdParams p, const __grid_constant__ KeyGrid grid,
                              const __grid_constant__ BwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv, kStages = Config::kStages;
  // Named barriers; kSumFull and kSumEmpty one a warpgroup, as kOwnBarrier.
  constexpr int kBoth = 1, kSumFull = 4, kSumEmpty = 6;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t k_tile = ptx::shared_address(memory), v_tile = k_tile + Config::kBytesKv;
  const uint32_t q_ring = v_tile + Config::kBytesKv, do_ring = q_ring + kStages * Config::kBytesQ;
  const uint32_t ds_tiles = do_ring + kStages * Config::kBytesQ, sums = ds_tiles + 2 * Config::kBytesDs;
  const uint32_t statistics = sums + 2 * Config::kBytesSum, ones = statistics + kStages * Config::kStatistics;
  KeyTiles tiles(ones + Config::kBytesOnes);
  const StreamBarriers<kStages> barriers(ones + Config::kBytesOnes + KeyTiles::kBytes);

  const Problem& problem = p.problem;
  if (threadIdx.x == 0) {
    tiles.init();
    barriers.init(Config::kProduct ? 8 : 256);
  }
  if constexpr (Config::kProduct) {
    // The other operand of the statistics' step: 8 x 8 elements with ones in the columns of LSE, then of
    // delta, then none.
    if (threadIdx.x < 24) {
      constexpr uint32_t kOne = 0x3f80;  // in bfloat16
      const int piece = int(threadIdx.x) / 8;
      ptx::store_shared_16(ones + threadIdx.x * 16, piece == 0 ? make_uint4(kOne << 16 | kOne, kOne, 0, 0)
                                                    : piece == 1
                                                        ? make_uint4(0, kOne << 16, kOne << 16 | kOne, 0)
                                                        : make_uint4(0, 0, 0, 0));
      ptx::fence_proxy_async();
    }
  }
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    ptx::launch_dependents();
    ptx::wait_for_previous_grid();  // statistics, counter and turns, of which consumers need none
    const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
    if (warp == 0)
      load_tiles<Config>(p, grid, maps, barriers, tiles, k_tile, v_tile, q_ring, do_ring, statistics);
    else if (warp >= 2)
      reduce_dq<Config>(p, grid, tiles, warp - 2, sums + (warp - 2) * Config::kBytesSum, kSumFull + warp - 2,
                        kSumEmpty + warp - 2);
    return;
  }

  ptx::setmaxnreg_inc<Config::kConsumerRegs>();
  const int group = __shfl_sync(~0u, int(threadIdx.x) / kWarpgroup, 0) - 1,
            thread = int(threadIdx.x) % kWarpgroup, warp = thread / 32, lane = thread % 32;
  const int row0 = 64 * group + 16 * warp + lane / 4, pair = 2 * (lane % 4);  // the first key and query
  const uint32_t k_rows = k_tile + 64 * 128 * group, v_rows = v_tile + 64 * 128 * group;
  const uint64_t ones_lse = ptx::descriptor_pieces(ones, 256, 0),
                 ones_delta = ptx::descriptor_pieces(ones + 128, 128, 0);
  const float factor = float(problem.scale) * kLog2e;
  const ScoreMap map(problem);
  // Row and swizzled piece that this lane addresses when a fragment is stored: of dS, in rows of queries, and
  // of dK and dV. This group's 64 keys are a chunk of each tile of dS.
  const uint32_t ds_chunk = ds_tiles + group * kM * 128,
                 ds_lane = ds_chunk + (8 * (lane / 16) + lane % 8) * 128 +
                           (((2 * warp + lane / 8 % 2) ^ (lane & 7)) << 4),
                 out_lane = ds_chunk + (16 * warp + lane % 16) * 128 + ((lane / 16 ^ (lane & 7)) << 4);

  float dk[kD / 2], dv[kD / 2], s[kM / 2];
  Ring<kStages> ring;
  uint32_t turn = 0, kv_parity = 0;  // turn: steps so far

  // D = A B^T, less the statistics that `which` selects.
  const auto issue_product = [&](float(&d)[kM / 2], uint32_t a_rows, uint32_t b_tile, uint64_t which) {
    if constexpr (Config::kProduct) {
      const uint64_t rows = ptx::descriptor_pieces(statistics + ring.stage * Config::kStatistics, 0, 128);
      ptx::Wgmma<__nv_bfloat16, kM, false, false>::ss(d, which, rows, 0);
      issue_nt<Element, kM, kD, kN, true>(d, a_rows, b_tile);
    } else {
      issue_nt<Element, kM, kD, kN>(d, a_rows, b_tile);
    }
  };
  const auto hand_over_sum = [&] { ptx::named_barrier_arrive(kSumFull + group, kWarpgroup + 32); };
  // Every step: P and dS of a tile, and the five products.
  const auto step = [&](const Tile& tile, const QueryTiles<Config>& queries, int m, bool first) {
    const uint32_t q_tile = q_ring + ring.stage * Config::kBytesQ,
                   do_tile = do_ring + ring.stage * Config::kBytesQ;
    const uint32_t lse = statistics + ring.stage * Config::kStatistics, delta = lse + kM * 4;
    const uint32_t ds_offset = (turn & 1) * Config::kBytesDs;
    float dp[kM / 2], dq[Config::kSumRegs];
    uint32_t probability[kM / 16][4], slope[kM / 16][4];

    ptx::mbarrier_wait(barriers.q_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_product(s, k_rows, q_tile, ones_lse);
    if (first) ptx::mbarrier_wait(barriers.v_full, kv_parity);
    ptx::mbarrier_wait(barriers.do_full + 8 * ring.stage, ring.parity);
    ptx::wgmma_fence();
    issue_product(dp, v_rows, do_tile, ones_delta);
    if (Config::kSumLate && !first) hand_over_sum();
    ptx::wgmma_wait<1>();
    ptx::keep(s);
    if constexpr (Config::kProduct) {
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) s[i] = ptx::ex2_approx_ftz(s[i] * factor);
    } else if constexpr (Config::kSoftcap) {
      capped_probabilities<Element>(s, slope, lse, pair, map);
    } else {
      probabilities(s, lse, pair, factor);
    }
    if (queries.edge(tile, m)) clear_unseen(s, queries.visible, tile, tile.row + row0, m * kM + pair);

    ptx::wgmma_wait<0>();
    ptx::keep(dp);
    if constexpr (Config::kProduct) {
#pragma unroll
      for (int i = 0; i < kM / 2; ++i) dp[i] *= s[i];
    } else {
      slopes(dp, s, delta, pair);
    }
    if constexpr (Config::kSoftcap) multiply_packed<Element>(dp, slope);
#pragma unroll
    for (int i = 0; i < kM / 16; ++i) {
      pack_operand<Element>(probability[i], s, i);
      pack_operand<Element>(slope[i], dp, i);
    }
#pragma unroll
    for (int i = 0; i < kM / 16; ++i)
      ptx::stmatrix_x4_transposed(ds_lane + ds_offset + i * 16 * 128, slope[i]);
    ptx::wgmma_fence();
    issue_nn<Element, kD, kM>(dv, probability, do_tile);
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);

    ptx::wgmma_fence();
    issue_dq<Config>(dq, ds_tiles + ds_offset, k_tile, group);
    ptx::wgmma_wait<1>();
    ptx::keep(dv);
    ptx::keep(probability);
    if (lane == 0) ptx::mbarrier_arrive(barriers.do_empty + 8 * ring.stage);
    ptx::wgmma_fence();
    issue_nn<Element, kD, kM>(dk, slope, q_tile);
    ptx::wgmma_wait<1>();
    ptx::keep(dq);
    ptx::named_barrier_sync(kSumEmpty + group, kWarpgroup + 32);
    stage_dq<Config>(sums + group * Config::kBytesSum + thread * 16, dq);
    if constexpr (!Config::kSumLate) hand_over_sum();
    ptx::wgmma_wait<0>();
    ptx::keep(dk);
    ptx::keep(slope);
    if (!Config::kProduct || lane == 0) ptx::mbarrier_arrive(barriers.q_empty + 8 * ring.stage);
    ring.advance();
    ++turn;
  };
  // Bound here once: passing all arguments at both call sites makes the compiler allocate registers differently.
  const auto write_rows = [&](const Tile& tile, int keys, int columns, const View& view,
                              const float(&acc)[kD / 2], float by, int buffer) {
    store_gradient<Config>(view, tile, keys, columns, acc, by, buffer, ds_chunk, out_lane, group, thread);
  };
  const auto write_piece = [&](int piece) { store_part<Config>(p, dk, dv, piece, group, thread); };

  for (KeyTile tile{}; tiles.next(tile);) {
    const QueryTiles<Config> queries(problem, tile, tile.begin, tile.end);
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.f;
    if (queries.steps > 0) {
      QueryStep<Config> at(tile, queries);
      ptx::mbarrier_wait(barriers.k_full, kv_parity);
      for (int i = 0; i < queries.steps; ++i) {
        step(tile, queries, at.m, i == 0);
        at.advance(tile, queries);
      }
      if constexpr (Config::kSumLate) hand_over_sum();
      if (lane == 0) ptx::mbarrier_arrive(barriers.kv_empty);
      kv_parity ^= 1;
    }
    if (tile.piece >= 0) {
      write_piece(tile.piece);
      continue;
    }
    ptx::named_barrier_sync(kBoth, 2 * kWarpgroup);  // no warp still reads dS
    write_rows(tile, queries.keys, problem.head_dim_v, p.dv, dv, 1.f, 0);
    write_rows(tile, queries.keys, problem.head_dim, p.dk, dk, float(problem.scale), kD == 128 ? 0 : 1);
  }
}

}  // namespace plab::ops::attention::sm90
