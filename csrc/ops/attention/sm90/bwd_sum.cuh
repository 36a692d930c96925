// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/bwd_schedule.cuh"

// The scratch of the backward up to head_dim 128, one piece per tile of queries: dQ's fp32 sum, to which the
// blocks of all key tiles add; the rows' statistics; and whose turn it is to add. Behind them what the parts
// of cut key tiles have of dK and dV. The kernel that fills it before, and the one that turns sums into rows
// after.
namespace plab::ops::attention::sm90 {

// With cu_seqlens sequences share no tile: one of n rows fills at most n / kTileQ + 1.
template <class Config>
__host__ __device__ __forceinline__ int sum_tiles(const Problem& p) {
  return int(p.cu_seqlens_q ? p.q_len / Config::kTileQ + p.batch
                            : (p.q_len + Config::kTileQ - 1) / Config::kTileQ);
}

template <class Config>
struct BwdScratch {
  static constexpr int kTileFloats = Config::kTileQ * Config::kHeadDim;
  // A turn for each warpgroup, which add independently of each other.
  static constexpr int kFloatsPerTile = kTileFloats + Config::kStatistics / 4 + 2;
  static constexpr int kPieceFloats = 2 * Config::kTileKv * Config::kHeadDim;

  int64_t tiles;
  float* base;

  __host__ __device__ __forceinline__ explicit BwdScratch(const BwdParams& p)
      : tiles(int64_t{p.problem.cu_seqlens_q ? 1 : p.problem.batch} * p.problem.heads *
              sum_tiles<Config>(p.problem)),
        base(p.dq_sum) {}
  int64_t floats(const KeyGrid& grid) const { return piece_floats() + int64_t{pieces(grid)} * kPieceFloats; }
  __device__ __forceinline__ int64_t first_tile(const Problem& p, const Tile& tile, int head) const {
    return (int64_t{tile.batch} * p.heads + head) * sum_tiles<Config>(p) + tile.q_row / Config::kTileQ +
           tile.sequence;
  }
  // dQ in the order of the accumulator's registers: a warpgroup's share is contiguous, float4 `quad` of its
  // thread `thread` lies 128 quad + thread float4s behind.
  __device__ __forceinline__ float* sum(int64_t tile, int group) const {
    return base + tile * kTileFloats + group * (kTileFloats / 2);
  }
  __device__ __forceinline__ float* statistics(int64_t tile) const {
    return base + tiles * kTileFloats + tile * (Config::kStatistics / 4);
  }
  __device__ __forceinline__ int* turn(int64_t tile, int group) const {
    return reinterpret_cast<int*>(base + tiles * (kTileFloats + Config::kStatistics / 4)) + tile * 2 + group;
  }
  // How many key tiles have been begun.
  __device__ __forceinline__ int* counter() const { return turn(tiles, 0); }
  // dK, then dV, of a part's 64 keys of a warpgroup, in the order of the accumulator's registers.
  __device__ __forceinline__ float4* piece(int64_t number, int group) const {
    return reinterpret_cast<float4*>(base + piece_floats() + number * kPieceFloats +
                                     group * (kPieceFloats / 2));
  }

 private:
  __host__ __device__ __forceinline__ int64_t piece_floats() const {
    return (tiles * kFloatsPerTile + 1 + 3) / 4 * 4;
  }
};

template <class Config>
int64_t scratch_floats(const BwdParams& params) {
  return BwdScratch<Config>(params).floats(make_schedule<Config>(params));
}

// x as three bfloat16 whose sum it is.
__device__ __forceinline__ void split_in_three(float x, float (&part)[3]) {
  part[0] = __bfloat162float(__float2bfloat16_rn(x));
  part[1] = __bfloat162float(__float2bfloat16_rn(x - part[0]));
  part[2] = x - part[0] - part[1];
}

// attention_bwd_sm90_prepare: delta = rowsum(dO O) - dLSE and the LSE of a tile's queries in the form the
// main kernel reads; its turns become 0, and so does the count of key tiles begun. Mapping   one block per
// query tile, kHeadDim / 8 lanes per row, 16 bytes each Bytes     B H Sq (4 D + 24)        Flops  2 B H Sq D
// Roof  memory Contract  attention.h. A query that does not exist, or sees nothing, gets an LSE that makes
// its P 0.
template <class Config>
__global__ void __launch_bounds__(kWarpgroup)
    attention_bwd_sm90_prepare_kernel(const __grid_constant__ BwdParams p,
                                      const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kLanes = Config::kHeadDim / 8, kRows = kWarpgroup / kLanes;  // rows at a time
  const Problem& problem = p.problem;
  const BwdScratch<Config> scratch(p);
  if (blockIdx.x == 0 && threadIdx.x == 0) *scratch.counter() = 0;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int64_t number = scratch.first_tile(problem, tile, tile.head) + tile.row / Config::kTileQ;
  if (threadIdx.x < 2) *scratch.turn(number, int(threadIdx.x)) = 0;
  float* const statistics = scratch.statistics(number);
  const int lane = int(threadIdx.x) % kLanes;
  const int64_t first = tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row + tile.row;
#pragma unroll 4
  for (int i = int(threadIdx.x) / kLanes; i < Config::kTileQ; i += kRows) {
    const bool exists = tile.row + i < tile.q_len;
    float sum = 0.f;
    if (exists && lane * 8 < problem.head_dim) {
      const int64_t row = tile.q_row + tile.row + i;
      const auto load = [&](const View& view) {
        return cuda::Vec<Element>{*reinterpret_cast<const uint4*>(
            row_pointer<const Element>(view, tile.batch, row, tile.head) + lane * 8)};
      };
      sum = cuda::dot(load(p.out), load(p.dout));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane != 0) continue;
    const float lse = exists ? static_cast<const float*>(p.lse)[first + i] : -INFINITY;
    const bool empty =
        lse == -INFINITY;  // nothing visible: whatever arrives for this row's LSE has no effect
    const float dlse = p.dlse != nullptr && !empty ? static_cast<const float*>(p.dlse)[first + i] : 0.f;
    const float delta = empty ? 0.f : sum - dlse;
    if constexpr (Config::kProduct) {
      // -LSE in the scores' own units and -delta; what stands for infinity has to stay finite times 0.
      float l[3], d[3];
      split_in_three(empty ? -1e38f : fmaxf(-lse / float(problem.scale), -1e38f), l);
      split_in_three(-delta, d);
      using Bf = __nv_bfloat16;
      reinterpret_cast<uint4*>(statistics)[i] = make_uint4(
          ptx::pack_pair<Bf>(l[0], l[1]), ptx::pack_pair<Bf>(l[2], d[0]), ptx::pack_pair<Bf>(d[1], d[2]), 0);
    } else {
      statistics[i] = empty ? INFINITY : lse * kLog2e;
      statistics[Config::kTileQ + i] = delta;
    }
  }
}

// dK and dV of a cut key tile: the sum of its parts. kGatherBlocks blocks share a tile.
constexpr int kGatherBlocks = 8;

template <class Config>
__device__ __forceinline__ void gather_parts(const BwdParams& p, const KeyGrid& grid, int block) {
  using Element = typename Config::Element;
  constexpr int kQuads = Config::kHeadDim / 8;  // of a thread, of dK or dV
  const int cut = block / kGatherBlocks;
  const Tile tile = find_tile(p.problem, grid, false, uint32_t(grid.whole + cut));
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const BwdScratch<Config> scratch(p);
#pragma unroll
  for (int quad = block % kGatherBlocks; quad < 2 * kQuads; quad += kGatherBlocks) {
    float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
    for (int part = 0; part < grid.parts; ++part) {
      const float4 v = scratch.piece(cut * grid.parts + part, group)[quad * kWarpgroup + thread];
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const bool is_dk = quad < kQuads;
    const View& view = is_dk ? p.dk : p.dv;
    const float by = is_dk ? float(p.problem.scale) : 1.f;
    const int row = tile.row + 64 * group + 16 * (thread / 32) + lane / 4,
              column = quad % kQuads * 8 + 2 * (lane % 4);
    const auto put = [&](int at, float x, float y) {
      if (at < tile.k_len && column < p.problem.head_dim)
        *reinterpret_cast<uint32_t*>(row_pointer<Element>(view, tile.batch, tile.k_row + at, tile.head) +
                                     column) = ptx::pack_pair<Element>(x * by, y * by);
    };
    put(row, sum.x, sum.y);
    put(row + 8, sum.z, sum.w);
  }
}

// attention_bwd_sm90_finish: dQ = scale times the sum, back in rows through shared memory, so that each row's
// pieces are written 16 bytes at a time. One block per query tile; memory, 6 bytes an element. Blocks behind
// them put cut key tiles together.
template <class Config>
__global__ void __launch_bounds__(2 * kWarpgroup)
    attention_bwd_sm90_finish_kernel(const __grid_constant__ BwdParams p,
                                     const __grid_constant__ TileGrid grid,
                                     const __grid_constant__ KeyGrid keys) {
  using Element = typename Config::Element;
  if (const int behind = int(blockIdx.x) - grid.tiles * grid.groups; behind >= 0)
    return gather_parts<Config>(p, keys, behind);
  constexpr int kM = Config::kTileQ, kN = Config::kTileKv;
  constexpr int kPieces = Config::kHeadDim / 8;  // of 16 bytes in a row
  __shared__ __align__(16) unsigned char memory[kM * kPieces * 16];
  const Tile tile = find_tile(p.problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int group = int(threadIdx.x) / kWarpgroup, thread = int(threadIdx.x) % kWarpgroup, lane = thread % 32;
  const float scale = float(p.problem.scale);
  const Visible visible(p.problem, tile);
  const int low = visible.low(tile.row);
  const bool seen = low < tile.k_len && low / kN * kN < visible.high(tile.row + kM - 1, tile.k_len);
  const BwdScratch<Config> scratch(p);
  const float4* const sum = reinterpret_cast<const float4*>(scratch.sum(
                                scratch.first_tile(p.problem, tile, tile.head) + tile.row / kM, group)) +
                            thread;
  const uint32_t rows = ptx::shared_address(memory);
  const auto place = [&](int row, int piece) { return rows + (row * kPieces + (piece ^ (row & 7))) * 16; };
#pragma unroll
  for (int j = 0; j < Config::kSumRegs / 4; ++j) {
    const float4 v = seen ? sum[j * kWarpgroup] : make_float4(0.f, 0.f, 0.f, 0.f);
    const int row = (kM == 64 ? 0 : 64 * group) + 16 * (thread / 32) + lane / 4;
    const int piece = (kM == 64 ? Config::kSumColumns / 8 * group : 0) + j;
    ptx::store_shared(place(row, piece) + 4 * (lane % 4), ptx::pack_pair<Element>(v.x * scale, v.y * scale));
    ptx::store_shared(place(row + 8, piece) + 4 * (lane % 4),
                      ptx::pack_pair<Element>(v.z * scale, v.w * scale));
  }
  __syncthreads();
#pragma unroll
  for (int i = int(threadIdx.x); i < kM * kPieces; i += 2 * kWarpgroup) {
    const int row = i / kPieces, piece = i % kPieces;
    if (tile.row + row < tile.q_len && piece * 8 < p.problem.head_dim)
      *reinterpret_cast<uint4*>(
          row_pointer<Element>(p.dq, tile.batch, tile.q_row + tile.row + row, tile.head) + piece * 8) =
          ptx::load_shared_16(place(row, piece));
  }
}

}  // namespace plab::ops::attention::sm90
