// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "cuda/ptx/tma_store.cuh"
#include "ops/attention/sm90/fwd_producer.cuh"
#include "ops/attention/sm90/fwd_softmax.cuh"
#include "ops/attention/sm90/fwd_store.cuh"

namespace plab::ops::attention::sm90 {

// attention_fwd_sm90: O = softmax(mask(Q K^T scale)) V and its LSE, on Hopper's wgmma and TMA.
// Mapping   a unit (FwdConfig) stays on its multiprocessor and walks over tiles of kTileQ query rows of one
//           head: a producer warp feeds TMA, and kTileQ / 64 consumer warpgroups own 64 rows each. S(n) =
//           Q K(n)^T is issued before O += P(n+1) V(n+1), so the softmax of tile n runs under the second
//           product; with kPingPong the two warpgroups take turns issuing, so that one's products run under
//           the other's softmax. P stays in registers, as the A operand. With several buffers for Q the first
//           S of the next query tile is issued before the last P V of this one, whose O leaves while products
//           run.
// Bytes     2 B (2 Sq H + 2 Sk Hkv) D + 4 B H Sq        Flops  4 B H Sq Sk D, half of it under a causal mask
// Roof      Sk / 2 flop per byte: compute, 989 TFLOP/s dense. At d64 the exponentials (16 a clock and
//           multiprocessor) take as long as the products.
// Contract  attention.h, and sm90::takes.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention_fwd_sm90_kernel(const __grid_constant__ FwdParams p, const __grid_constant__ TileGrid grid,
                              const __grid_constant__ FwdMaps maps) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kStages = Config::kStages, kStagesQ = Config::kStagesQ;
  extern __shared__ __align__(1024) unsigned char bytes[];
  const int warpgroup = uniform(int(threadIdx.x) / kWarpgroup);
  // Units share the first warpgroup, one warp each.
  const int unit = Config::kUnits == 1 ? 0
                   : warpgroup == 0    ? uniform(int(threadIdx.x) / 32) % Config::kUnits
                                       : (warpgroup - 1) / Config::kConsumers;
  const FwdMemory<Config> memory(ptx::shared_address(bytes) + unit * Config::kUnitBytes);
  const Problem& problem = p.problem;

  if (threadIdx.x < 32 * Config::kUnits && threadIdx.x % 32 == 0) memory.init_barriers();
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    ptx::setmaxnreg_dec<Config::kProducerRegs>();
    if (threadIdx.x < 32 * Config::kUnits) produce<Config>(p, grid, maps, memory, unit);
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegs>();
    const int group = warpgroup - 1 - Config::kConsumers * unit, lane = int(threadIdx.x & 31);
    const int band = 64 * group + 16 * (int(threadIdx.x % kWarpgroup) / 32);  // this warp's rows in the tile
    const bool leader = threadIdx.x % kWarpgroup == 0;
    // Named barriers: kTurn + group, and one among a group's own threads.
    constexpr int kTurn = 1;
    const int own_barrier = 3 + warpgroup;
    static_assert(!Config::kPingPong || Config::kUnits * Config::kConsumers == 2);
    if (Config::kPingPong && group == 1) ptx::named_barrier_arrive(kTurn, 2 * kWarpgroup);  // group 0 begins

    Ring<kStagesQ> q;
    Ring<kStages> k, v;
    const ScoreMap map(problem);
    const float slack = fminf(LaggingRow::kSlack / map.factor, 0x1p125f);
    float o[kD / 2], s[kN / 2], rescale[2];
    uint32_t probability[kN / 16][4];
    LaggingRow state;
    int leaving = -1;  // the Q buffer from which TMA is fetching O
    Share share{};
    bool begins = true;  // the next P V is a tile's first: it overwrites O, which nothing need set to 0
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) o[i] = 0.f;

    // Every warp gives a buffer back for itself. One for the group would do where products are, which four
    // warps issue together; but a tile that is only passed over could be replaced before another warp has
    // looked, and that warp would wait for a parity that has passed.
    const auto release = [&](auto& ring, uint32_t empty) {
      if (lane == 0) ptx::mbarrier_arrive(empty + 8 * ring.stage);
      ring.advance();
    };
    const auto skip = [&](auto& ring, uint32_t full, uint32_t empty) {
      ptx::mbarrier_wait(full + 8 * ring.stage, ring.parity);
      release(ring, empty);
    };
    const auto next_work = [&] {
      ptx::mbarrier_wait(memory.q_full + 8 * q.stage, q.parity);
      if constexpr (Config::kPingPong) {
        const Work work = read_work(memory.note(q.stage));
        share.end = work.key_end, share.edge = work.edge;
        return work;
      } else {
        share = read_share(memory.note(q.stage), group);
        return read_work(memory.note(q.stage));
      }
    };
    const auto begin_scores = [&] {
      ptx::mbarrier_wait(memory.k_full + 8 * k.stage, k.parity);
      if (Config::kPingPong) ptx::named_barrier_sync(kTurn + group, 2 * kWarpgroup);
      ptx::wgmma_fence();
      issue_nt<Element, kN, kD, kM>(s, memory.q_ring + q.stage * Config::kBytesQ + 64 * 128 * group,
                                    memory.k_ring + k.stage * Config::kBytesKv);
    };
    const auto pass_turn = [&] {
      if (Config::kPingPong) ptx::named_barrier_arrive(kTurn + 1 - group, 2 * kWarpgroup);
    };
    const auto begin_output = [&](int n, int k_len) {
      ptx::mbarrier_wait(memory.v_full + 8 * v.stage, v.parity);
      const uint32_t v_tile = memory.v_ring + v.stage * Config::kBytesKv;
      // With cu_seqlens the rows behind a sequence are its neighbour's: a NaN there must not meet a
      // probability of 0.
      if (problem.cu_seqlens_k != nullptr && (n + 1) * kN > k_len) {
        const int first = k_len - n * kN;
        for (int i = int(threadIdx.x % kWarpgroup); i < (kN - first) * (kD / 8); i += kWarpgroup) {
          const int row = first + i / (kD / 8), piece = i % (kD / 8);
          ptx::store_shared_16(v_tile + (piece / 8) * kN * 128 + row * 128 + (piece % 8) * 16,
                               make_uint4(0, 0, 0, 0));
        }
        ptx::fence_proxy_async();
        ptx::named_barrier_sync(own_barrier, kWarpgroup);
      }
      ptx::wgmma_fence();
      issue_nn<Element, kD, kN>(o, probability, v_tile, !begins);
      begins = false;
    };
    const auto soften = [&](const Work& work, int n) {
      if (map.remap) remap_scores(s, map);
      if (n < work.clear_from || n >= share.edge)
        mask_scores(s, n * kN, work.row + band, visible_of(problem, work), work.k_len);
      return exponentiate(s, map.factor, slack, state, rescale);
    };
    const auto pack = [&] {
#pragma unroll
      for (int i = 0; i < kN / 16; ++i) pack_operand<Element>(probability[i], s, i);
    };
    // LSE of a finished tile, and what its O must be multiplied by.
    const auto finish = [&](const LaggingRow& rows, const Work& work, int64_t first, float (&inverse)[2]) {
      float* lse = static_cast<float*>(p.lse) + first;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float value;
        finish_row(rows, h, map.factor, problem.sink, work.head, inverse[h], value);
        const int row = band + lane / 4 + 8 * h;
        if (lane % 4 == 0 && row < work.rows) lse[row] = value;
      }
    };
    // From registers, so that the one Q buffer could be given back after the last S.
    const auto write = [&](const LaggingRow& rows, const Work& work) {
      float inverse[2];
      finish(rows, work, share.lse, inverse);
      Element* out = row_pointer<Element>(p.out, work.batch, work.q_row + work.row, work.head);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = band + lane / 4 + 8 * h;
        write_row<Element, kD>(out + row * p.out.row, o, h, inverse[h], row < work.rows, problem.head_dim);
      }
    };
    // Through shared memory. Only this group reads its 64 rows of Q, and it is done with them: they become
    // O's staging area, and free once O has left.
    const auto store = [&](const LaggingRow& rows, int stage) {
      const Work work = read_work(memory.note(stage));
      float inverse[2];
      int64_t first;
      if constexpr (Config::kPingPong)
        first = work.batch * p.rows.batch + work.head * p.rows.head + work.q_row + work.row;
      else
        first = read_share(memory.note(stage), group).lse;
      finish(rows, work, first, inverse);
      const uint32_t o_tile = memory.q_ring + stage * Config::kBytesQ;
      stage_band<Element, kM, kD>(o_tile, band, o, inverse);
      if (problem.cu_seqlens_q != nullptr) {  // the rows behind a sequence are its neighbour's
        ptx::named_barrier_sync(own_barrier, kWarpgroup);
        store_rows_sm90<kM, kD>(row_pointer<Element>(p.out, work.batch, work.q_row + work.row, work.head),
                                p.out.row, o_tile, 64 * group, work.rows, problem.head_dim);
      }
      ptx::fence_proxy_async();
      ptx::named_barrier_sync(own_barrier, kWarpgroup);
      if (leader && problem.cu_seqlens_q == nullptr) {
#pragma unroll
        for (int chunk = 0; chunk < kD / 64; ++chunk)
          ptx::tma_store_4d(&maps.o, o_tile + chunk * kM * 128 + 64 * group * 128, chunk * 64,
                            work.row + 64 * group, work.head, work.batch);
        ptx::tma_store_commit();
      }
      leaving = stage;
    };
    const auto settle = [&] {
      if (leaving < 0) return;
      if (leader) ptx::tma_store_wait_read();
      if (lane == 0) ptx::mbarrier_arrive(memory.q_empty + 8 * leaving);
      leaving = -1;
    };

    const auto release_q = [&](const Work& work, int n) {  // after S(n)
      if (kStagesQ == 1 && n == work.key_begin && lane == 0)
        ptx::mbarrier_arrive(memory.q_empty + 8 * q.stage);
    };

    // A run: tiles one after the other, the products of neighbours overlapping.
    Work work = next_work();
#pragma unroll 1
    while (work.rows > 0) {
      int end = share.end;
      if (end == work.key_begin) {  // the tile's last rows do not reach this group
        for (int n = work.key_end; n > work.key_begin; --n) {
          skip(k, memory.k_full, memory.k_empty);
          skip(v, memory.v_full, memory.v_empty);
        }
        release(q, memory.q_empty);
        work = next_work();
        continue;
      }
      if (end < work.key_end) {
        skip(k, memory.k_full, memory.k_empty);
        skip(v, memory.v_full, memory.v_empty);
      }
      begins = true;
      state = LaggingRow{};
      begin_scores();
      pass_turn();
      ptx::wgmma_wait<0>();
      ptx::keep(s);
      release(k, memory.k_empty);
      int n = end - 1, n_output, k_len, stage;
      release_q(work, n);
      soften(work, n);
      pack();
#pragma unroll 1
      for (;;) {
        const bool last = n == work.key_begin;
        bool skips = false;
        n_output = n--, k_len = work.k_len, stage = q.stage;
        if (last) {
          if (kStagesQ == 1) break;
          settle();
          q.advance();
          work = next_work();
          if (work.rows == 0) break;
          end = share.end;
          if (end == work.key_begin) break;
          skips = end < work.key_end;
          if (skips) skip(k, memory.k_full, memory.k_empty);
          n = end - 1;
        }
        begin_scores();
        begin_output(n_output, k_len);
        pass_turn();
        ptx::wgmma_wait<1>();
        ptx::keep(s);
        release(k, memory.k_empty);
        release_q(work, n);
        const LaggingRow finished = state;
        if (last) state = LaggingRow{};
        const bool changed = soften(work, n);
        ptx::wgmma_wait_after<0>(state.sum[0] + state.sum[1]);
        ptx::keep(o);
        ptx::keep(probability);
        release(v, memory.v_empty);
        settle();
        if (last) {
          if (skips) skip(v, memory.v_full, memory.v_empty);
          store(finished, stage);
          begins = true;
        } else if (changed) {
#pragma unroll
          for (int i = 0; i < kD / 2; ++i) o[i] *= rescale[i / 2 % 2];
        }
        pack();
      }
      begin_output(n_output, k_len);
      ptx::wgmma_wait<0>();
      ptx::keep(o);
      ptx::keep(probability);
      release(v, memory.v_empty);
      if (kStagesQ == 1) {
        write(state, work);
        q.advance();
        work = next_work();
      } else {
        settle();
        store(state, stage);
        settle();
      }
    }
  }
}

template <class Config>
void launch_fwd_config(const FwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
  const int64_t kv_bytes = p.k_len / (p.cu_seqlens_k ? p.batch : 1) * p.head_dim * 4 * p.kv_heads / p.heads;
  TileGrid grid = make_tile_grid(p, true, Config::kTileQ, kv_bytes);
  const int64_t resident = cuda::device_attribute<cudaDevAttrMultiProcessorCount>();
  const int64_t count = std::min((blocks(grid) + Config::kUnits - 1) / Config::kUnits, resident);
  // Tiles of equal length: all of a head side by side, because they share its keys.
  if (!grid.last_first)
    grid.section = 1;
  else if (params.next_tile == nullptr)
    grid.section = even_section(grid, Config::kUnits * count);
  const auto map = [&](const View& view, int64_t rows, int64_t heads, int box) {
    return make_tensor_map(view, p.element, p.head_dim, rows, heads, batch, box);
  };
  const FwdMaps maps{
      map(params.q, p.q_len, p.heads, Config::kTileQ), map(params.k, p.k_len, p.kv_heads, Config::kTileKv),
      map(params.v, p.k_len, p.kv_heads, Config::kTileKv), map(params.out, p.q_len, p.heads, 64)};
  const auto kernel = attention_fwd_sm90_kernel<Config>;
  PLAB_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSmemBytes));
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(count));
  launch.blockDim = dim3(Config::kThreads);
  launch.dynamicSmemBytes = Config::kSmemBytes;
  launch.stream = stream;
  // Over equal lengths the kernel before this one only clears the counter, which the producers wait for.
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  launch.attrs = &early;
  launch.numAttrs = params.next_tile != nullptr && p.cu_seqlens_q == nullptr ? 1 : 0;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&launch, kernel, params, grid, maps));
}

template <int kHeadDim, int kTileQ, int kTileKv, bool kPingPong, int kUnits = 1, int kStages = 2>
void launch_fwd_element(const FwdParams& params, cudaStream_t stream) {
  if (params.problem.element == ElementType::kBFloat16)
    launch_fwd_config<FwdConfig<__nv_bfloat16, kHeadDim, kTileQ, kTileKv, kPingPong, kUnits, kStages>>(
        params, stream);
  else
    launch_fwd_config<FwdConfig<__half, kHeadDim, kTileQ, kTileKv, kPingPong, kUnits, kStages>>(params,
                                                                                                stream);
}

}  // namespace plab::ops::attention::sm90
