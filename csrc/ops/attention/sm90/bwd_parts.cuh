// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/vec.cuh"
#include "ops/attention/sm90/tiles.cuh"

// What the Hopper kernels that own keys share: which query tiles a key tile meets, how those arrive, and the
// work on a fragment of scores. Keys lie on a fragment's rows here, queries on its columns.
namespace plab::ops::attention::sm90 {

struct BwdMaps {
  CUtensorMap q, dout, k, v;
};

// With cu_seqlens the rows behind a sequence are its neighbour's, which must not reach a product, not even
// times 0 (they may hold a NaN). So TMA is shown a tensor in which they do not exist: (column, row of a tile,
// head, stop), where the tile's rows are the tile_rows rows before row `stop` of the real tensor. A tile that
// begins `rows` before its sequence's end asks for the box that begins `rows` before the tensor's end; what
// hangs over arrives as zeros.
inline CUtensorMap make_row_map(const Problem& p, const View& view, int64_t rows, int64_t heads,
                                int tile_rows) {
  if (p.cu_seqlens_q == nullptr)
    return make_tensor_map(view, p.element, p.head_dim, rows, heads, p.batch, tile_rows);
  const int64_t stride = view.row > 0 ? view.row : 8;  // 0: a single row
  const View ragged{static_cast<uint16_t*>(view.data) - tile_rows * stride, stride, stride, view.head};
  return make_tensor_map(ragged, p.element, p.head_dim, tile_rows, heads, rows + 1, tile_rows);
}

// Where TMA finds the rows from `row` on of a sequence of `length` rows that begins at row `first` of the
// tensor.
struct RowBox {
  int row, batch;
};

template <int kRows>
__device__ __forceinline__ RowBox row_box(const Problem& p, const Tile& tile, int64_t first, int length,
                                          int row) {
  if (p.cu_seqlens_q == nullptr) return {row, tile.batch};
  const int rows = min(kRows, length - row);
  return {kRows - rows, int(first) + row + rows};
}

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

template <int kStages, int kStagesDo = kStages>
struct QueryBarriers {
  uint32_t kv_full, q_full, do_full, q_empty, do_empty;
  __device__ __forceinline__ explicit QueryBarriers(uint32_t at)
      : kv_full(at),
        q_full(at + 8),
        do_full(q_full + 8 * kStages),
        q_empty(do_full + 8 * kStagesDo),
        do_empty(q_empty + 8 * kStages) {}
  __device__ __forceinline__ void init() const {
    ptx::mbarrier_init(kv_full, 1);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(q_full + 8 * i, 1 + 32);  // the copy, and the lanes that bring the statistics
      ptx::mbarrier_init(q_empty + 8 * i, 8);      // every consumer warp: each reads the statistics itself
    }
    for (int i = 0; i < kStagesDo; ++i) {
      ptx::mbarrier_init(do_full + 8 * i, 1);
      ptx::mbarrier_init(do_empty + 8 * i, 2);  // both consumer warpgroups
    }
    ptx::fence_barrier_init();
  }
};

// The producer warpgroup's work: thread 0 feeds K and V once and the query tiles in turn, lanes of the second
// warp bring LSE log2(e) and delta of the tile's queries.
template <class Config, int kStages, int kStagesDo>
__device__ __forceinline__ void feed_queries(const BwdParams& p, const Tile& tile,
                                             const QueryTiles<Config>& queries, const BwdMaps& maps,
                                             const QueryBarriers<kStages, kStagesDo>& barriers,
                                             uint32_t k_tile, uint32_t v_tile, uint32_t q_ring,
                                             uint32_t do_ring, uint32_t statistics) {
  constexpr int kD = Config::kHeadDim, kM = Config::kTileQ, kN = Config::kTileKv;
  if (threadIdx.x == 0 && queries.steps > 0) {
    const RowBox keys = row_box<kN>(p.problem, tile, tile.k_row, tile.k_len, tile.row);
    ptx::mbarrier_arrive_expect_tx(barriers.kv_full, 2 * Config::kBytesKv);
#pragma unroll
    for (int chunk = 0; chunk < kD / 64; ++chunk) {
      ptx::tma_load_4d(k_tile + chunk * kN * 128, &maps.k, barriers.kv_full, chunk * 64, keys.row, tile.head,
                       keys.batch);
      ptx::tma_load_4d(v_tile + chunk * kN * 128, &maps.v, barriers.kv_full, chunk * 64, keys.row, tile.head,
                       keys.batch);
    }
    Ring<kStages> ring;
    Ring<kStagesDo> ring_do;
    int head = tile.head * queries.heads, m = queries.begin;
    for (int step = 0; step < queries.steps; ++step) {
      const RowBox rows = row_box<kM>(p.problem, tile, tile.q_row, tile.q_len, m * kM);
      ptx::mbarrier_wait(barriers.q_empty + 8 * ring.stage, ring.parity ^ 1);
      tma_load_tile<kM, kD>(q_ring + ring.stage * Config::kBytesQ, maps.q, barriers.q_full + 8 * ring.stage,
                            rows.row, head, rows.batch);
      ptx::mbarrier_wait(barriers.do_empty + 8 * ring_do.stage, ring_do.parity ^ 1);
      tma_load_tile<kM, kD>(do_ring + ring_do.stage * Config::kBytesQ, maps.dout,
                            barriers.do_full + 8 * ring_do.stage, rows.row, head, rows.batch);
      ring.advance();
      ring_do.advance();
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
      const int64_t row = tile.batch * p.rows.batch + head * p.rows.head + tile.q_row + m * kM;
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

// dS = P (dP - delta), in dP's place, from the packed P.
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
