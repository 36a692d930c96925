// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/vec.cuh"
#include "ops/attention/sm90/tiles.cuh"

// What the Hopper kernels that own keys share: which query tiles a key tile meets, and the work on a fragment
// of scores. Keys lie on a fragment's rows here, queries on its columns.
namespace plab::ops::attention::sm90 {

struct BwdMaps {
  CUtensorMap q, dout, k, v;
};

inline BwdMaps make_bwd_maps(const BwdParams& params, int tile_q, int tile_kv) {
  const Problem& p = params.problem;
  return {make_row_map(p, params.q, p.q_len, p.heads, tile_q),
          make_row_map(p, params.dout, p.q_len, p.heads, tile_q),
          make_row_map(p, params.k, p.k_len, p.kv_heads, tile_kv),
          make_row_map(p, params.v, p.k_len, p.kv_heads, tile_kv)};
}

// Blocks that own key tiles; what they share is Q, dO and dQ's sum. Under a causal mask the first of them
// have the most work and start first; where there are few blocks, that order has to hold across all heads, or
// the last head's long ones end alone.
template <class Config>
TileGrid make_key_grid(const Problem& p) {
  const int sequences = p.cu_seqlens_q ? p.batch : 1;  // that share q_len
  TileGrid grid = make_tile_grid(p, false, Config::kTileKv,
                                 p.q_len / sequences * p.head_dim * 8 * (p.heads / p.kv_heads));
  if (p.window_right >= 0 && blocks(grid) < 8 * cuda::device_attribute<cudaDevAttrMultiProcessorCount>())
    grid.section = grid.groups;
  return grid;
}

// The query tiles that see a key tile, or one part of them, in every query head that shares its key head.
template <class Config>
struct QueryTiles {
  Visible visible;
  int keys, heads, begin, end, steps;
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(visible.low_query(tile.row) / Config::kTileQ),
        end((visible.high_query(tile.row + keys - 1, tile.q_len) + Config::kTileQ - 1) / Config::kTileQ) {
    steps = max(0, end - begin) * heads;
  }
  // Some of them.
  __device__ __forceinline__ QueryTiles(const Problem& p, const Tile& tile, int first, int last)
      : visible(p, tile),
        keys(min(Config::kTileKv, tile.k_len - tile.row)),
        heads(p.heads / p.kv_heads),
        begin(first),
        end(last),
        steps(max(0, end - begin) * heads) {}
  // Whether some pair of query tile m and the key tile does not see each other.
  __device__ __forceinline__ bool edge(const Tile& tile, int m) const {
    return tile.row + Config::kTileKv > visible.high(m * Config::kTileQ, tile.k_len) ||
           tile.row < visible.low(m * Config::kTileQ + Config::kTileQ - 1);
  }
};

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

// The same with softcap, whose slope 1 - tanh^2 goes to `bend`, packed: dS is to be multiplied by it.
template <class Element, int kRegs>
__device__ __forceinline__ void capped_probabilities(float (&s)[kRegs], uint32_t (&bend)[kRegs / 8][4],
                                                     uint32_t lse_log2, int pair, const ScoreMap& map) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 lse = ptx::load_shared_float2(lse_log2 + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = tanh_fast(s[i + 2 * h] * map.inner), y = tanh_fast(s[i + 2 * h + 1] * map.inner);
      s[i + 2 * h] = ptx::ex2_approx_ftz(map.outer * x - lse.x);
      s[i + 2 * h + 1] = ptx::ex2_approx_ftz(map.outer * y - lse.y);
      bend[i / 8][i / 2 % 4 + h] = ptx::pack_pair<Element>(1.f - x * x, 1.f - y * y);
    }
  }
}

template <class Element, int kRegs>
__device__ __forceinline__ void multiply_packed(float (&d)[kRegs], const uint32_t (&by)[kRegs / 8][4]) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 2) {
    float2 value;
    cuda::detail::unpack_word<Element>(by[i / 8][i / 2 % 4], value.x, value.y);
    d[i] *= value.x;
    d[i + 1] *= value.y;
  }
}

// dS = P (dP - delta), in dP's place.
template <int kRegs>
__device__ __forceinline__ void slopes(float (&dp)[kRegs], const float (&probability)[kRegs], uint32_t deltas,
                                       int pair) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 delta = ptx::load_shared_float2(deltas + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      dp[i + 2 * h] = probability[i + 2 * h] * (dp[i + 2 * h] - delta.x);
      dp[i + 2 * h + 1] = probability[i + 2 * h + 1] * (dp[i + 2 * h + 1] - delta.y);
    }
  }
}

// The same from the packed P.
template <class Element, int kRegs>
__device__ __forceinline__ void slopes_packed(float (&dp)[kRegs], const uint32_t (&probability)[kRegs / 8][4],
                                              uint32_t deltas, int pair) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 delta = ptx::load_shared_float2(deltas + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float2 value;
      cuda::detail::unpack_word<Element>(probability[i / 8][i / 2 % 4 + h], value.x, value.y);
      dp[i + 2 * h] = value.x * (dp[i + 2 * h] - delta.x);
      dp[i + 2 * h + 1] = value.y * (dp[i + 2 * h + 1] - delta.y);
    }
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

}  // namespace plab::ops::attention::sm90
