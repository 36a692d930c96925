// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <numeric>

#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/fwd_kernel.cuh"
#include "ops/attention/sm90/launch.h"

// The grid of the forward, its tensor maps, and its launch.
namespace plab::ops::attention::sm90 {

// Whether blocks take their tiles from a counter in global memory. Without a mask, tiles of 128 rows take equal
// time, and the counter would only cost its two microseconds.
inline bool counts_tiles(const Problem& p) { return p.stale_keys || p.window_right >= 0 || p.widest() <= 64; }

// Of the mean sequence, with cu_seqlens.
inline int64_t keys_per_sequence(const Problem& p) { return p.k_len / (p.cu_seqlens_k ? p.batch : 1); }

constexpr int kLeastBox = 8;  // rows; smaller boxes take TMA longer than copies of rows

template <class Config>
void launch_fwd(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
  const auto map_queries = [&](const View& view, int dim, int box) {
    return make_tensor_map(view, p.element, dim, p.q_len, p.heads, batch, box);
  };
  const int64_t keys = Config::kCached ? params.cache.page_size : p.k_len,
                batch_of_keys = Config::kCached ? params.cache.page_count : batch;
  const int key_rows =
      params.cache.pages != nullptr ? std::gcd(params.cache.page_size, Config::kTileKv) : Config::kTileKv;
  const auto map_keys = [&](const View& view, int dim) {
    return make_tensor_map(view, p.element, dim, keys, p.kv_heads, batch_of_keys, key_rows);
  };
  const FwdMaps maps{map_queries(params.q, p.head_dim, Config::kTileQ),
                     map_keys(params.k, p.head_dim),
                     map_keys(params.v, p.head_dim_v),
                     map_queries(params.out, p.head_dim_v, 64),
                     key_rows,
                     key_rows < kLeastBox};
  // The kernel before this one clears the counter or appends to the cache (plan_tails), and only producers wait for it.
  const auto launch = params.tile_counter != nullptr || Config::kCached
                          ? &launch_early<FwdParams, FwdParams, TileGrid, FwdMaps>
                          : &launch_kernel<FwdParams, FwdParams, TileGrid, FwdMaps>;
  launch(attention_fwd_sm90_kernel<Config>, how, stream, params, how.tiles, maps);
}

template <class Config>
FwdPlan plan_fwd_config(const Problem& p) {
  const int64_t kv_bytes = keys_per_sequence(p) * (p.head_dim + p.head_dim_v) * 2 * p.kv_heads / p.heads;
  TileGrid tiles = make_tile_grid(p, true, Config::kTileQ, kv_bytes);
  const int64_t count =
      cuda::smaller<int64_t>((blocks(tiles) + Config::kUnits - 1) / Config::kUnits, cuda::sm_count());
  if (Config::kCached && p.cu_seqlens_q != nullptr) tiles.above = kDecodeRows;
  FwdPlan plan;
  // With one tile for each unit at most there is nothing to balance, and a small call saves a launch.
  const bool one_each = p.cu_seqlens_q == nullptr && blocks(tiles) <= Config::kUnits * count;
  plan.workspace.tile_counter = (counts_tiles(p) || Config::kCached) && !one_each;
  // Tiles of equal length: all tiles of a head run concurrently, because they share its keys.
  if (one_each)
    tiles.section = tiles.groups;
  else if (!tiles.last_first)
    tiles.section = 1;
  else if (!plan.workspace.tile_counter)
    tiles.section = even_section(tiles, Config::kUnits * count);
  plan.add({launch_fwd<Config>, count, Config::kThreads, Config::kSmemBytes, tiles});
  return plan;
}

template <int kHeadDim, int kTileQ, int kTileKv, bool kPingPong, int kUnits = 1, int kStages = 2,
          int kHeadDimV = kHeadDim, bool kCached = false>
FwdPlan plan_fwd_element(const Problem& p) {
  const auto with = [&]<class Element>(Element) {
    return plan_fwd_config<
        FwdConfig<Element, kHeadDim, kTileQ, kTileKv, kPingPong, kUnits, kStages, kHeadDimV, kCached>>(p);
  };
  return p.element == ElementType::kBFloat16 ? with(__nv_bfloat16{}) : with(__half{});
}

}  // namespace plab::ops::attention::sm90
