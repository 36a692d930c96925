// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "ops/attention/plan.cuh"
#include "ops/attention/sm90/decode/kernel.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

int row_tiles(const Problem& p) {
  return static_cast<int>(cuda::ceil_div<int64_t>(p.q_len * (p.heads / p.kv_heads), kDecodeRows));
}

template <class Config>
constexpr int kMostBlocks = Config::kBlocksPerSm > 1 ? 16 : 8;

template <class Config, class Keys>
void launch_decode(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(how.split.parts), 1, 1};
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(how.blocks));
  launch.blockDim = dim3(how.threads);
  launch.dynamicSmemBytes = how.shared_bytes;
  launch.stream = stream;
  launch.attrs = &cluster;
  launch.numAttrs = 1;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&launch, attention_decode_sm90_kernel<Config, Keys>, params,
                                     how.split.parts, how.tiles.tiles, how.tiles.upto));
}

// Clusters of a size that run at once. Asked before every launch, so the first call lets the kernel run so.
template <class Config, class Keys>
int64_t resident_clusters(int blocks) {
  static cuda::PerBlockSize caches[5];  // of clusters of 1, 2, 4, 8 and 16 blocks
  const void* const kernel = reinterpret_cast<const void*>(attention_decode_sm90_kernel<Config, Keys>);
  int slot = 0;
  while (1 << slot < blocks) ++slot;
  return cuda::clusters_on_device(kernel, blocks, Config::kThreads, Config::kSmemBytes, caches[slot]);
}

// So many blocks take all of the memory's bandwidth, and more of them only wait for it. Reading through a table of
// pages takes longer, and the sequences of a cache have different lengths: the longest ones end alone.
template <class Keys>
constexpr double kSaturating = Keys::kCached ? 160 : 96;

// Blocks for each key head: 1, 2, 4 ... What a block does besides its tiles (start, sums, the cluster's two
// barriers) takes about as long as six tiles of a warp, and a third of a tile more for each block of the cluster.
template <class Config, class Keys>
int blocks_per_head(const Problem& p, int64_t clusters, int64_t keys) {
  if (p.window_left >= 0 && p.window_right >= 0)
    keys = cuda::smaller(keys, p.q_len + p.window_left + p.window_right);
  int best = 1;
  double least = 1e300;
  for (int blocks = 1; blocks <= kMostBlocks<Config>; blocks *= 2) {
    const int64_t resident = resident_clusters<Config, Keys>(blocks);
    const int64_t tiles = cuda::ceil_div<int64_t>(keys, int64_t{Config::kKeys} * Config::kWarps * blocks);
    const double running = static_cast<double>(cuda::smaller(clusters, resident) * blocks);
    const double round =
        static_cast<double>(tiles) * cuda::larger(1.0, running / kSaturating<Keys>) + 6 + 0.35 * blocks;
    const double cost = static_cast<double>(cuda::ceil_div(clusters, resident)) * round;
    if (cost < 0.99 * least) best = blocks, least = cost;
    if (tiles <= 1) break;
  }
  return best;
}

// Calls `with` for the configuration that the problem takes.
template <class With>
auto choose(const Problem& p, With&& with) {
  const auto of_element = [&]<class Element>(Element) {
    if (p.widest() <= 64) return with(DecodeConfig<Element, 64>{});
    return p.widest() <= 128 ? with(DecodeConfig<Element, 128>{}) : with(DecodeConfig<Element, 256>{});
  };
  return p.element == ElementType::kBFloat16 ? of_element(__nv_bfloat16{}) : of_element(__half{});
}

// `busy` of the clusters have a tile.
template <class Keys>
FwdPlan plan(const Problem& p, const TileGrid& tiles, int64_t clusters, int64_t busy, int64_t keys) {
  return choose(p, [&]<class Config>(Config) {
    const int parts = blocks_per_head<Config, Keys>(p, busy, keys);
    FwdPlan plan;
    KernelLaunch<FwdParams> launch{launch_decode<Config, Keys>, clusters * parts, Config::kThreads,
                                   Config::kSmemBytes, tiles};
    launch.split.parts = parts;
    plan.add(launch);
    return plan;
  });
}

}  // namespace

bool is_decode(const Problem& p) {
  return p.cu_seqlens_q == nullptr && p.k_len > 0 && p.q_len <= kDecodeRows && row_tiles(p) == 1 &&
         int64_t{p.batch} * p.kv_heads < int64_t{1} << 26;
}

FwdPlan plan_decode(const Problem& p) {
  const int64_t clusters = int64_t{p.batch} * p.kv_heads;
  return plan<DenseKeys>(p, {kDecodeRows, 1}, clusters, clusters, p.k_len);
}

FwdPlan plan_decode_with_cache(const FwdParams& params, int most_rows) {
  const Problem& p = params.problem;
  const int64_t groups = int64_t{p.batch} * p.kv_heads;
  TileGrid tiles{kDecodeRows, row_tiles(p)};
  if (p.cu_seqlens_q == nullptr)
    return plan<CachedKeys>(p, tiles, groups * tiles.tiles, groups * tiles.tiles, params.cache.capacity);
  tiles.tiles = most_decode_tiles(p, most_rows);
  tiles.upto = most_rows;
  return plan<CachedKeys>(p, tiles, int64_t{tiles.tiles} * p.kv_heads, groups, params.cache.capacity);
}

}  // namespace plab::ops::attention::sm90
