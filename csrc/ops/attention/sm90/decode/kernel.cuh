// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/cluster.cuh"
#include "ops/attention/mask.cuh"
#include "ops/attention/sm90/decode/key_rows.cuh"
#include "ops/attention/warp_gemm.cuh"

// The forward for few queries: decoding, where each sequence asks with one row, or with the few rows of
// speculative decoding. The keys of a head are shared out among the warps of a cluster of blocks.
namespace plab::ops::attention::sm90 {

template <class Element_, int kHeadDim_>
struct DecodeConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kRows = kDecodeRows;
  static constexpr int kKeys = 16;  // of a tile; every warp has tiles of its own
  static constexpr int kBytesRows = kRows * kHeadDim * 2, kBytesTile = kKeys * kHeadDim * 2;
  static constexpr int kStages = kHeadDim == 64 ? 6 : 3;  // tiles of K and V in flight for each warp
  static constexpr int kBytesRing = kStages * 2 * kBytesTile;
  // What a warp passes on, in its own ring: rows of O in fp32, padded to spread the rows over the banks.
  static constexpr int kPitch = kHeadDim + 4;
  static constexpr int kBytesPartial = kRows * kPitch * 4;
  static_assert(kBytesPartial <= kBytesRing);
  // The warps' references and sums, then those of the block.
  static constexpr int kBytesStats = (kWarps + 1) * kRows * 2 * 4;
  static constexpr int kSmemBytes = kBytesRows + kWarps * kBytesRing + kBytesStats;
  static constexpr int kBlocksPerSm = kHeadDim == 256 ? 1 : 2;
};

// The weight of a partial result in a sum whose reference is `most`.
__device__ __forceinline__ float weight_of(float reference, float most, float factor) {
  return reference == -INFINITY ? 0.f : ptx::ex2_approx_ftz((reference - most) * factor);
}

// attention_decode_sm90: O = softmax(mask(Q K^T scale)) V and its LSE for few rows of queries.
// Mapping   one cluster per key head, sequence and 16 query rows. The rows of all its query heads are one fragment of
//           mma.m16n8k16, so grouped heads read K and V once. Each warp walks over its own run of tiles of 16 keys
//           with a ring of its own, so the loop has no barrier. Then the block adds up its warps, and each
//           block of the cluster adds up a part of O out of the others' shared memory: no workspace, one launch.
// Bytes     2 B Sk Hkv D 2, all that matters       Flops  4 B H Sq Sk D, half of the fragment's rows or more idle
// Roof      Sq H / Hkv flop per byte: memory. Bytes in flight: 96 KB per block, 2 blocks per SM (d256: 1 of 192 KB).
// Contract  attention.h; with cu_seqlens_q the keys are in a cache. Keys: DenseKeys or CachedKeys.
template <class Config, class Keys>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    attention_decode_sm90_kernel(const __grid_constant__ FwdParams p, const int blocks_per_head,
                                 const int row_tiles, const int most_rows) {
  using Element = typename Config::Element;
  constexpr int kD = Config::kHeadDim, kStages = Config::kStages, kWarps = Config::kWarps;
  constexpr int kRows = Config::kRows, kKeys = Config::kKeys;
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t q_tile = ptx::shared_address(memory), rings = q_tile + Config::kBytesRows;
  const uint32_t stats = rings + kWarps * Config::kBytesRing;

  const Problem& problem = p.problem;
  const int rank = int(blockIdx.x) % blocks_per_head, cluster = int(blockIdx.x) / blocks_per_head;
  DecodeTile mine;
  if (!find_decode_tile<Keys>(mine, p, cluster, row_tiles, most_rows)) return;  // all of the cluster
  const int batch = mine.batch, kv_head = mine.kv_head, first_row = mine.first_row, q_row = mine.q_row;
  const int q_len = mine.q_len, k_len = mine.k_len, dim = problem.head_dim;
  const int heads = problem.heads / problem.kv_heads, rows = min(kRows, heads * q_len - first_row);
  const int warp = int(threadIdx.x / 32), lane = int(threadIdx.x & 31);
  Tile whole{};
  whole.q_len = q_len, whole.k_len = k_len;
  const Visible visible(problem, whole);

  for (int i = int(threadIdx.x); i < kRows * kD / 8; i += Config::kThreads) {
    const int row = i / (kD / 8), chunk = i % (kD / 8), head = (first_row + row) / q_len;
    const Element* from = row_pointer<const Element>(p.q, batch, q_row + first_row + row - head * q_len,
                                                     kv_head * heads + head) +
                          chunk * 8;
    const bool valid = row < rows && chunk * 8 < dim;
    ptx::cp_async_16(q_tile + chunk_bytes<kD>(row, chunk),
                     valid ? from : static_cast<const Element*>(p.q.data), valid);
  }
  ptx::cp_async_commit();

  // The keys that any of these queries sees, in tiles; this warp's run of them.
  const int last_row = first_row + rows - 1;
  const bool one_head = first_row / q_len == last_row / q_len;
  const int first_query = one_head ? first_row % q_len : 0,
            last_query = one_head ? last_row % q_len : q_len - 1;
  const int begin = visible.low(first_query) / kKeys * kKeys, end = visible.high(last_query, k_len);
  const int64_t tiles = end > begin ? (end - begin + kKeys - 1) / kKeys : 0;
  const int unit = rank * kWarps + warp, units = blocks_per_head * kWarps;
  const int first = int(tiles * unit / units), last = int(tiles * (unit + 1) / units);
  const uint32_t ring = rings + warp * Config::kBytesRing;
  const auto load = [&](int tile) {
    if (tile < last) {
      const uint32_t stage = ring + uint32_t((tile - first) % kStages) * 2 * Config::kBytesTile;
      load_keys<Config>(Keys{}, stage, p, mine, begin + tile * kKeys);
    }
    ptx::cp_async_commit();  // an empty group too, so that the number of groups tells which tile has arrived
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) load(first + i);
  if (rank == 0 && first_row == 0) keep_new_keys<Config>(Keys{}, p, mine);

  int low[2], high[2];  // what this thread's two rows see
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = (first_row + lane / 4 + 8 * h) % q_len;
    low[h] = visible.low(query), high[h] = visible.high(query, k_len);
  }
  const int all_from = visible.low(last_query),
            all_to = visible.high(first_query, k_len);  // what every row sees
  const ScoreMap map(problem);
  const float slack = LazyRow::kSlack / map.factor;
  float o[1][kD / 2] = {};
  LazyRow state;

  ptx::cp_async_wait<kStages - 1>();
  __syncthreads();  // Q has arrived
  for (int tile = first; tile < last; ++tile) {
    ptx::cp_async_wait<kStages - 2>();
    __syncwarp();  // the tile has arrived for all lanes, and none of them reads the one before
    load(tile + kStages - 1);
    const uint32_t stage = ring + uint32_t((tile - first) % kStages) * 2 * Config::kBytesTile;
    float s[1][kKeys / 2] = {};
    product_nt<Element, 1, kKeys, kD>(s, q_tile, 0, stage);
    if (map.remap) remap_scores(s[0], map);
    const int key = begin + tile * kKeys;
    if (key < all_from || key + kKeys > all_to) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int h = i / 2 % 2, column = key + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (column < low[h] || column >= high[h]) s[0][i] = -INFINITY;
      }
    }
    float rescale[2];
    if (exponentiate(s[0], map.factor, slack, state, rescale)) {
#pragma unroll
      for (int i = 0; i < kD / 2; ++i) o[0][i] *= rescale[i / 2 % 2];
    }
    product_nn<Element, 1, kKeys, kD>(o, s, stage + Config::kBytesTile);
  }
  ptx::cp_async_wait<0>();
  __syncwarp();  // the ring is free

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
    float sum = state.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) {
      ptx::store_shared_float(stats + (warp * kRows + row) * 8, sum == 0.f ? -INFINITY : state.reference[h]);
      ptx::store_shared_float(stats + (warp * kRows + row) * 8 + 4, sum);
    }
#pragma unroll
    for (int i = 2 * h; i < kD / 2; i += 4) {
      const uint32_t at = ring + (row * Config::kPitch + i / 4 * 8 + lane % 4 * 2) * 4;
      ptx::store_shared_float(at, o[0][i]);
      ptx::store_shared_float(at + 4, o[0][i + 1]);
    }
  }
  __syncthreads();

  // The block's sum, in the first warp's ring: thread by thread four columns of a row.
  const uint32_t block_stats = stats + kWarps * kRows * 8;
  for (int i = int(threadIdx.x); i < rows * (kD / 4); i += Config::kThreads) {
    const int row = i / (kD / 4), column = i % (kD / 4) * 4;
    float2 of[kWarps];
    float most = -INFINITY, sum = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      of[w] = ptx::load_shared_float2(stats + (w * kRows + row) * 8);
      most = fmaxf(most, of[w].x);
    }
    float total[4] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(of[w].x, most, map.factor);
      const uint4 part =
          ptx::load_shared_16(rings + w * Config::kBytesRing + (row * Config::kPitch + column) * 4);
      sum += weight * of[w].y;
      total[0] += weight * __uint_as_float(part.x);
      total[1] += weight * __uint_as_float(part.y);
      total[2] += weight * __uint_as_float(part.z);
      total[3] += weight * __uint_as_float(part.w);
    }
    ptx::store_shared_16(rings + (row * Config::kPitch + column) * 4,
                         make_uint4(__float_as_uint(total[0]), __float_as_uint(total[1]),
                                    __float_as_uint(total[2]), __float_as_uint(total[3])));
    if (column == 0) {
      ptx::store_shared_float(block_stats + row * 8, most);
      ptx::store_shared_float(block_stats + row * 8 + 4, sum);
    }
  }
  ptx::cluster_sync();

  // The cluster's sum: each block takes its share of the columns of all rows.
  const int step = Config::kThreads * blocks_per_head;
  for (int i = rank * Config::kThreads + int(threadIdx.x); i < rows * (kD / 4); i += step) {
    const int row = i / (kD / 4), column = i % (kD / 4) * 4;
    float most = -INFINITY, sum = 0.f;
    float total[4] = {};
    for (int b = 0; b < blocks_per_head; ++b)
      most = fmaxf(most, ptx::cluster_load(ptx::cluster_address(block_stats + row * 8, uint32_t(b))));
    for (int b = 0; b < blocks_per_head; ++b) {
      const uint32_t of = ptx::cluster_address(block_stats + row * 8, uint32_t(b));
      const float weight = weight_of(ptx::cluster_load(of), most, map.factor);
      const float4 part =
          ptx::cluster_load_4(ptx::cluster_address(rings + (row * Config::kPitch + column) * 4, uint32_t(b)));
      sum += weight * ptx::cluster_load(of + 4);
      total[0] += weight * part.x;
      total[1] += weight * part.y;
      total[2] += weight * part.z;
      total[3] += weight * part.w;
    }
    const int head = kv_head * heads + (first_row + row) / q_len, query = q_row + (first_row + row) % q_len;
    float inverse, lse;
    finish_sum(sum, most * map.factor, problem.sink, head, inverse, lse);
    if (column < problem.head_dim_v) {
      Element* out = row_pointer<Element>(p.out, batch, query, head) + column;
      *reinterpret_cast<uint2*>(out) =
          make_uint2(ptx::pack_pair<Element>(total[0] * inverse, total[1] * inverse),
                     ptx::pack_pair<Element>(total[2] * inverse, total[3] * inverse));
    }
    if (column == 0) static_cast<float*>(p.lse)[batch * p.rows.batch + head * p.rows.head + query] = lse;
  }
  ptx::cluster_sync();  // no block's memory goes while another reads it
}

}  // namespace plab::ops::attention::sm90
