// SPDX-License-Identifier: Apache-2.0
// How rows are packed into steps for the kernels of packed.cuh.
#pragma once

#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/packed.cuh"

namespace plab::ops::layer_norm_gelu::portable {

/// The fewest rows that begin and end at a multiple of 16 bytes.
inline int rows_per_bundle(int64_t cols, int vec_size) {
  int rows = 1;
  while (rows * cols % vec_size != 0) rows *= 2;
  return rows;
}

/// Threads of a block, bundles of a step, and blocks on an SM.
struct PackedShape {
  int threads = 0, bundles = 0, blocks_per_sm = 0;
};

/// What the shape depends on, of the kernel.
struct PackedLimits {
  int vecs_of_thread, resident_threads, bytes_per_thread, static_bytes;
  float alone;  // what a block that has an SM to itself is worth, compared with several
};

template <class Config>
constexpr PackedLimits packed_limits() {
  return {Config::Tile::kVecs, Config::kResidentThreads, Config::kBytesPerThread,
          static_cast<int>(sizeof(typename Config::template Ring<true>::Barriers)), Config::kAlone};
}

/// The shape that leaves the fewest lanes idle. Several blocks on an SM: while one waits at a barrier, others
/// compute. Few rows are distributed over all SMs. No threads: a bundle does not fit a block.
inline PackedShape choose_packed_shape(const PackedLimits& limits, int64_t rows, int rows_per_bundle,
                                       int vecs_per_bundle, int weight_bytes) {
  const int per_sm = cuda::device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  const int reserved = cuda::device_attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  const int64_t share = cuda::ceil_div<int64_t>(rows, int64_t{rows_per_bundle} * cuda::sm_count());
  PackedShape best;
  float best_score = 0.0f;
  for (int threads = 64; threads <= limits.resident_threads; threads += cuda::kWarpSize) {
    int bundles = cuda::smaller(threads * limits.vecs_of_thread / vecs_per_bundle, threads / rows_per_bundle);
    if (bundles > share) bundles = static_cast<int>(share);
    const int bytes = threads * limits.bytes_per_thread + weight_bytes + limits.static_bytes;
    if (bundles == 0 || bytes > cuda::max_shared_bytes()) continue;
    const int blocks = cuda::smaller(limits.resident_threads / threads, per_sm / (bytes + reserved));
    const float busy =
        static_cast<float>(bundles * vecs_per_bundle) / static_cast<float>(threads * limits.vecs_of_thread);
    const float occupied = static_cast<float>(blocks * threads) / static_cast<float>(limits.resident_threads);
    const float score =
        busy * (0.5f + 0.5f * occupied) * (blocks > 1 ? 1.0f : limits.alone) * (threads < 128 ? 0.97f : 1.0f);
    if (score > best_score) best = {threads, bundles, blocks}, best_score = score;
  }
  return best;
}

/// Without a kernel where a bundle does not fit a block.
template <class Config, auto kKernel>
Plan plan_packed(int64_t rows, int64_t cols) {
  using Tile = typename Config::Tile;
  Plan plan;
  Packing& packing = plan.packing;
  packing.cols = static_cast<int>(cols);
  packing.rows_per_bundle = rows_per_bundle(cols, Tile::kVecSize);
  packing.vecs_per_bundle = packing.rows_per_bundle * packing.cols / Tile::kVecSize;
  const int weight_bytes = Config::Weights::bytes(packing);
  const PackedShape shape = choose_packed_shape(packed_limits<Config>(), rows, packing.rows_per_bundle,
                                                packing.vecs_per_bundle, weight_bytes);
  if (shape.threads == 0) return {};
  packing.rows = packing.rows_per_bundle * shape.bundles;
  // A lane adds up about eight vectors of a row.
  while (packing.lanes_per_row_log2 < 5 && (cols >> packing.lanes_per_row_log2) > 8 * Tile::kVecSize)
    ++packing.lanes_per_row_log2;
  packing.inverse_cols = 1.0f / static_cast<float>(cols);
  packing.steps = cuda::ceil_div<int64_t>(rows, packing.rows);
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.threads = shape.threads;
  plan.shared_bytes = shape.threads * Config::kBytesPerThread + weight_bytes;
  plan.argument = Plan::Argument::kPacking;
  // Asked without the weights, whose size is not the same for all rows.
  const int resident = cuda::blocks_per_sm<kKernel>(shape.threads, shape.threads * Config::kBytesPerThread);
  const int64_t blocks = int64_t{cuda::smaller(resident, shape.blocks_per_sm)} * cuda::sm_count();
  plan.blocks = cuda::smaller(packing.steps, blocks);
  plan.workspace_rows = plan.blocks > 1 ? plan.blocks : 0;
  return plan;
}

}  // namespace plab::ops::layer_norm_gelu::portable
