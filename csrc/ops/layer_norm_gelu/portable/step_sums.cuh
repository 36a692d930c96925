// SPDX-License-Identifier: Apache-2.0
// The sums of the rows of a step (step.cuh).
#pragma once

#include "cuda/ptx/mma_sync.cuh"
#include "ops/layer_norm_gelu/portable/step.cuh"

namespace plab::ops::layer_norm_gelu {

/// Sums over the blocks of a cluster, a pair per step, of which each block hands in one. kPairs pairs of each step.
template <int kPairs>
class ClusterSums {
 public:
  static constexpr int kMaxBlocks = 16;
  struct Storage {
    float of_block[2][kPairs][kMaxBlocks][2];  // of two steps in turn
    unsigned long long barrier[2][kPairs];
  };

  /// Synchronise the cluster before the first sum, and before its blocks end.
  __device__ explicit ClusterSums(Storage& storage)
      : storage_(static_cast<uint32_t>(__cvta_generic_to_shared(&storage))) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * kPairs; ++i) cuda::ptx::mbarrier_init(barrier(i / kPairs, i % kPairs), 1);
      cuda::ptx::fence_barrier_init();
    }
  }
  /// One warp of each block, whose lanes all have the same a and b.
  __device__ __forceinline__ void add(int step, int pair, float& a, float& b) const {
    const int lane = threadIdx.x % cuda::kWarpSize, turn = step % 2;
    const int values = 2 * static_cast<int>(cuda::ptx::cluster_size());
    if (lane == 0) cuda::ptx::mbarrier_arrive_expect_tx(barrier(turn, pair), values * sizeof(float));
    if (lane < values) {  // lanes 2 c and 2 c + 1 serve block c
      const uint32_t mine = slot(turn, pair, 2 * static_cast<int>(cuda::ptx::cluster_rank()) + lane % 2);
      cuda::ptx::cluster_store_async(cuda::ptx::cluster_address(mine, lane / 2), lane % 2 == 0 ? a : b,
                                     cuda::ptx::cluster_address(barrier(turn, pair), lane / 2));
    }
    cuda::ptx::mbarrier_wait(barrier(turn, pair), step / 2 % 2);
    float v = lane < values ? cuda::ptx::load_shared_float(slot(turn, pair, lane)) : 0.0f;
#pragma unroll
    for (int offset = 2; offset < cuda::kWarpSize; offset *= 2)
      v += __shfl_xor_sync(cuda::kAllLanes, v, offset);
    a = __shfl_sync(cuda::kAllLanes, v, 0);
    b = __shfl_sync(cuda::kAllLanes, v, 1);
  }

 private:
  __device__ uint32_t slot(int turn, int pair, int i) const {
    return storage_ + ((turn * kPairs + pair) * 2 * kMaxBlocks + i) * static_cast<uint32_t>(sizeof(float));
  }
  __device__ uint32_t barrier(int turn, int pair) const {
    return storage_ + static_cast<uint32_t>(offsetof(Storage, barrier)) + (turn * kPairs + pair) * 8;
  }

  uint32_t storage_;
};

/// What the vectors have for the sums of their rows, of two steps in turn: those of one are added up while those of
/// the next are handed in.
template <class Tile, class Part, int kPairs, bool kHopper>
class StepSums {
 public:
  /// Per thread. A step has at most as many rows as a block has threads.
  static constexpr int kBytes = 2 * (Tile::kVecs + 1) * static_cast<int>(sizeof(Part));
  using OfCluster = ClusterSums<kPairs>;

  __device__ StepSums(const Tile& tile, const StepLayout& layout, void* shared,
                      typename OfCluster::Storage& storage)
      : tile_(tile), layout_(layout), parts_(static_cast<Part*>(shared)), of_cluster_(storage) {
    if constexpr (kHopper) {
      if (Team<kHopper>::size() > 1) cuda::ptx::cluster_sync();
    }
  }

  /// Hands in part(from, until) of vector i: of its elements of one row.
  template <class Make>
  __device__ __forceinline__ void post(int step, int i, Make&& part) {
    Part* of_vec = of_step(step);
    const int vec = tile_.place(i) / Tile::kVecSize;
    if (!tile_.is_split(i)) {
      of_vec[vec] = part(0, Tile::kVecSize);
    } else {
      of_vec[vec] = part(0, tile_.split(i));
      of_vec[Tile::kVecs * blockDim.x + tile_.row(i) + 1] = part(tile_.split(i), Tile::kVecSize);
    }
  }

  /// add_up(row, each) in all lanes of a warp, for each of the step's first `rows` rows. each(use) is
  /// use(part, its number of elements) for those parts of the row that are this lane's; row < 0: the lane has none.
  /// Which warps do it changes from step to step.
  template <class AddUp>
  __device__ __forceinline__ void each_row(int step, int rows, AddUp&& add_up) {
    const Part* of_vec = of_step(step);
    const Part* of_head = of_vec + Tile::kVecs * blockDim.x;
    const int warps = static_cast<int>(blockDim.x / 32), rows_of_warp = 32 / lanes();
    int warp = static_cast<int>(threadIdx.x / 32) - first_warp_;
    if (warp < 0) warp += warps;
    const int lane = static_cast<int>(threadIdx.x) & (lanes() - 1);
    for (; warp * rows_of_warp < rows; warp += warps) {
      const int row = warp * rows_of_warp + (static_cast<int>(threadIdx.x % 32) >> layout_.lanes_per_row_log2);
      add_up(row < rows ? row : -1, lane == 0, [&](auto&& use) {
        if (row >= rows) return;
        const int start = row * layout_.cols + tile_.offset(), stop = start + layout_.cols;
        const int begin = start > 0 ? start : 0, end = stop < Tile::capacity() ? stop : Tile::capacity();
        const int first = (begin + Tile::kVecSize - 1) / Tile::kVecSize, whole = end / Tile::kVecSize;
        const int ahead = first * Tile::kVecSize - begin, behind = end - whole * Tile::kVecSize;
        if (ahead > 0 && lane == 0) use(of_head[row], ahead);
#pragma unroll 4
        for (int vec = first + lane; vec < whole; vec += lanes()) use(of_vec[vec], Tile::kVecSize);
        if (behind > 0 && lane == lanes() - 1) use(of_vec[whole], behind);
      });
    }
    first_warp_ += (rows + rows_of_warp - 1) >> (5 - layout_.lanes_per_row_log2);
    while (first_warp_ >= warps) first_warp_ -= warps;
  }
  /// Two sums over the lanes and blocks of a row; the pair-th of this step.
  __device__ __forceinline__ void add(int step, int pair, float& a, float& b) const {
    for (int offset = lanes() / 2; offset > 0; offset /= 2) {
      a += __shfl_xor_sync(cuda::kAllLanes, a, offset);
      b += __shfl_xor_sync(cuda::kAllLanes, b, offset);
    }
    if constexpr (kHopper) {
      if (Team<kHopper>::size() > 1) of_cluster_.add(step, pair, a, b);
    }
  }
  /// Before the block ends: others may still write to it.
  __device__ __forceinline__ void finish() const {
    if constexpr (kHopper) {
      if (Team<kHopper>::size() > 1) cuda::ptx::cluster_sync();
    }
  }

 private:
  __device__ __forceinline__ int lanes() const { return 1 << layout_.lanes_per_row_log2; }
  /// Of each vector, then of each row's first elements if it begins within a vector.
  __device__ __forceinline__ Part* of_step(int step) const {
    return parts_ + (step % 2) * (Tile::kVecs + 1) * static_cast<int>(blockDim.x);
  }

  const Tile& tile_;
  const StepLayout& layout_;
  int first_warp_ = 0;
  Part* parts_;
  OfCluster of_cluster_;
};

}  // namespace plab::ops::layer_norm_gelu
