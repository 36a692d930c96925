// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/sm90/bwd_tile_scheduler.cuh"

// The workspace of the backward up to head_dim 128. Each query tile has the fp32 accumulator of dQ, to which the
// blocks of all key tiles add, the row statistics, and the number of the key tile that adds next. Behind these
// follow dK and dV of the parts of split key tiles.
namespace plab::ops::attention::sm90 {

// With cu_seqlens sequences share no tile: one of n rows takes at most n / kTileQ + 1.
template <class Config>
__host__ __device__ __forceinline__ int sum_tiles(const Problem& p) {
  return int(p.cu_seqlens_q ? p.q_len / Config::kTileQ + p.batch
                            : (p.q_len + Config::kTileQ - 1) / Config::kTileQ);
}

template <class Config>
struct BwdWorkspace {
  static constexpr int kTileFloats = Config::kTileQ * Config::kHeadDim;
  // A turn for each warpgroup, which add independently of each other.
  static constexpr int kFloatsPerTile = kTileFloats + Config::kStatistics / 4 + 2;
  static constexpr int kPieceFloats = 2 * Config::kTileKv * Config::kHeadDim;

  int64_t tiles;
  float* base;

  __host__ __device__ __forceinline__ explicit BwdWorkspace(const BwdParams& p)
      : tiles(int64_t{p.problem.cu_seqlens_q ? 1 : p.problem.batch} * p.problem.heads *
              sum_tiles<Config>(p.problem)),
        base(p.dq_accum) {}
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
  // How many key tiles have been started.
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

}  // namespace plab::ops::attention::sm90
