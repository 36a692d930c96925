// SPDX-License-Identifier: Apache-2.0
// Sums over the threads that share a row: one warp, or all warps of a block. The order of the additions
// depends on the number of threads alone, so equal inputs give equal bits.
#pragma once

namespace plab::cuda {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

/// Every lane gets the sums of all lanes, the same bits in each: a butterfly adds the same pairs in both
/// directions.
template <int kValues>
__device__ __forceinline__ void warp_sum(float (&v)[kValues]) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int k = 0; k < kValues; ++k) v[k] += __shfl_xor_sync(kAllLanes, v[k], offset);
  }
}

/// The threads that share a row are a whole block, a multiple of 32 of at most 1024.
class BlockGroup {
 public:
  static constexpr int kMaxValues = 2;
  /// Two buffers: a thread may still read the sums of one reduction while another writes those of the next.
  /// Nobody can be two reductions ahead, because the barrier in between waits for every reader. So one
  /// barrier per sum is enough.
  struct Storage {
    float partial[2][kMaxValues][kWarpSize];
  };

  __device__ explicit BlockGroup(Storage& storage) : storage_(storage) {
    const int warps = size() / kWarpSize;
    while (slots_ < warps) slots_ *= 2;
  }
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }

  template <int kValues>
  __device__ void sum(float (&v)[kValues]) {
    static_assert(kValues <= kMaxValues);
    warp_sum(v);
    const int warps = size() / kWarpSize, warp = rank() / kWarpSize, lane = rank() % kWarpSize;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < kValues; ++k) storage_.partial[buffer_][k][warp] = v[k];
    }
    __syncthreads();
    const int slot = lane & (slots_ - 1);
#pragma unroll
    for (int k = 0; k < kValues; ++k) v[k] = slot < warps ? storage_.partial[buffer_][k][slot] : 0.0f;
    // Every run of slots_ lanes holds all the warps' sums.
    for (int offset = slots_ / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int k = 0; k < kValues; ++k) v[k] += __shfl_xor_sync(kAllLanes, v[k], offset);
    }
    buffer_ ^= 1;
  }

 private:
  Storage& storage_;
  int slots_ = 1;  // warps, rounded up to a power of two
  int buffer_ = 0;
};

}  // namespace plab::cuda
