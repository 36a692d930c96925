// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/tma_store.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "ops/attention/sm90/epilogue.cuh"
#include "ops/attention/sm90/fwd_config.cuh"

// The epilogue of the forward. O is stored in one of two ways: with TMA from shared memory, or directly from
// registers.
namespace plab::ops::attention::sm90 {

// Puts this warp's 16 accumulator rows, from row `band` of a tile of kRows rows on, times factor[h], into the
// tile as 16-bit elements: four 8 x 8 matrices an instruction.
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void stage_band(uint32_t tile, int band, const float (&acc)[kDim / 2],
                                           const float (&factor)[2]) {
  const int lane = int(threadIdx.x & 31), row = band + lane % 16;
  const uint32_t at = tile + row * 128 + (((lane / 16) ^ (row & 7)) << 4);
#pragma unroll
  for (int piece = 0; piece < kDim / 8; piece += 2) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * (piece + i / 2) + 2 * (i % 2);
      words[i] = ptx::pack_pair<Element>(acc[e] * factor[i % 2], acc[e + 1] * factor[i % 2]);
    }
    ptx::stmatrix_x4((at ^ ((piece % 8) << 4)) + (piece / 8) * kRows * 128, words);
  }
}

// Writes one of this thread's two rows (h) of the accumulator, times `factor`. The four lanes of a row
// exchange what they hold of four pieces of 8 columns, so that each writes a whole piece, 16 bytes.
template <class Element, int kDim>
__device__ __forceinline__ void write_row(Element* row, const float (&acc)[kDim / 2], int h, float factor,
                                          bool valid, int columns) {
  const int place = int(threadIdx.x & 3);
  const bool odd = place & 1, high = place & 2;
#pragma unroll
  for (int piece = 0; piece < kDim / 8; piece += 4) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int e = 4 * (piece + i) + 2 * h;
      w[i] = ptx::pack_pair<Element>(acc[e] * factor, acc[e + 1] * factor);
    }
    // A 4 x 4 transposition: swaps halves of pairs, then pairs.
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    (odd ? w[0] : w[1]) = a;
    (odd ? w[2] : w[3]) = b;
    a = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
    b = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
    (high ? w[0] : w[2]) = a;
    (high ? w[1] : w[3]) = b;
    const int column = 8 * (piece + place);
    if (valid && column < columns)
      *reinterpret_cast<uint4*>(row + column) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// LSE of a finished tile, from `first` on, and what its O must be multiplied by.
template <class Config>
__device__ __forceinline__ void finish_rows(const FwdParams& p, const LazyRow& rows, float factor,
                                            const WorkTile& work, int64_t first, float (&inverse)[2],
                                            int band, int lane) {
  float* lse = static_cast<float*>(p.lse) + first;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float value;
    finish_row(rows, h, factor, p.problem.sink, work.head, inverse[h], value);
    const int row = band + lane / 4 + 8 * h;
    if (lane % 4 == 0 && row < work.rows) lse[row] = value;
  }
}

// From registers, so that the only Q buffer is free after the last S.
template <class Config>
__device__ __forceinline__ void store_from_registers(const FwdParams& p,
                                                     const float (&o)[Config::kHeadDimV / 2],
                                                     const LazyRow& rows, float factor, const WorkTile& work,
                                                     int64_t lse, int band, int lane) {
  using Element = typename Config::Element;
  float inverse[2];
  finish_rows<Config>(p, rows, factor, work, lse, inverse, band, lane);
  Element* out = row_pointer<Element>(p.out, work.batch, work.q_row + work.row, work.head);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = band + lane / 4 + 8 * h;
    write_row<Element, Config::kHeadDimV>(out + row * p.out.row, o, h, inverse[h], row < work.rows,
                                          p.problem.head_dim_v);
  }
}

// Through shared memory. Only this warpgroup reads its 64 rows of Q, and it is done with them. They become the
// staging area of O and are free again when O is stored (wait_for_store).
template <class Config>
__device__ __forceinline__ void store_by_tma(const FwdParams& p, const FwdMaps& maps,
                                             const FwdMemory<Config>& memory,
                                             const float (&o)[Config::kHeadDimV / 2], const LazyRow& rows,
                                             float factor, int stage, int& leaving, int group, int band,
                                             int lane, bool leader, int own_barrier) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDimV, kM = Config::kTileQ;
  const Problem& problem = p.problem;
  const WorkTile work = read_work_tile(memory.note(stage));
  float inverse[2];
  int64_t first;
  if constexpr (Config::kPingPong)
    first = work.batch * p.rows.batch + work.head * p.rows.head + work.q_row + work.row;
  else
    first = read_warpgroup_tile(memory.note(stage), group).lse;
  finish_rows<Config>(p, rows, factor, work, first, inverse, band, lane);
  const uint32_t o_tile = memory.q_ring + stage * Config::kBytesQ;
  stage_band<Element, kM, kD>(o_tile, band, o, inverse);
  // With cu_seqlens the rows behind a sequence belong to the next one, and TMA would overwrite them.
  const bool by_rows = problem.cu_seqlens_q != nullptr && work.rows < 64 * group + 64;
  if (by_rows) {
    ptx::named_barrier_sync(own_barrier, kWarpgroup);
    store_rows<kM, kD>(row_pointer<Element>(p.out, work.batch, work.q_row + work.row, work.head), p.out.row,
                       o_tile, 64 * group, work.rows, problem.head_dim_v);
  }
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(own_barrier, kWarpgroup);
  if (leader && !by_rows) {
#pragma unroll
    for (int chunk = 0; chunk < Config::kColumnsV / 64; ++chunk)
      ptx::tma_store_4d(&maps.o, o_tile + chunk * kM * 128 + 64 * group * 128, chunk * 64,
                        work.q_row + work.row + 64 * group, work.head, work.batch);
    ptx::tma_store_commit();
  }
  leaving = stage;
}

// Gives back the Q buffer that O leaves from, once TMA has read it.
template <class Config>
__device__ __forceinline__ void wait_for_store(const FwdMemory<Config>& memory, int& leaving, int lane,
                                               bool leader) {
  if (leaving < 0) return;
  if (leader) ptx::tma_store_wait_read();
  if (lane == 0) ptx::mbarrier_arrive(memory.q_empty + 8 * leaving);
  leaving = -1;
}

}  // namespace plab::ops::attention::sm90
