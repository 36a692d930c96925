// SPDX-License-Identifier: Apache-2.0
// Two sums over the threads that share a row, in two steps: post() hands in what a thread has, collect()
// gives the sums. In between there is time for other work, which the wait for the slowest warp then no longer
// costs. The order of the additions depends on the number of threads alone, so equal inputs give equal bits.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/reduce.cuh"

namespace plab::cuda {

/// Sums two values over a warp, or over kLanes neighbours of it. They share the shuffles: even lanes end up
/// with the sum of a, odd lanes with b's.
template <int kLanes = kWarpSize>
__device__ __forceinline__ float warp_pair_sum(float a, float b) {
  const bool odd = threadIdx.x % 2 != 0;
  float v = odd ? b : a;
  v += __shfl_xor_sync(kAllLanes, odd ? a : b, 1);
#pragma unroll
  for (int offset = 2; offset < kLanes; offset *= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
  return v;
}

/// What a row's threads pass from post to collect: `lane_sum` of post is as warp_pair_sum returns it.
/// At most kDepth posts may be waiting for their collect, minus two.
constexpr int kPairBuffers = 4;

/// A warp, or kLanes neighbours of it, have the row to themselves. All lanes of a warp take all steps.
template <int kLanes_>
class LanePairSum {
 public:
  static constexpr bool kIsWarp = true;
  static constexpr int kBlocks = 1;
  static constexpr int kLanes = kLanes_;
  struct Storage {};
  struct Ticket {
    float lane_sum;
  };

  __device__ explicit LanePairSum(Storage&) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ int size() const { return kLanes; }
  __device__ int local_size() const { return kLanes; }
  __device__ int blocks() const { return 1; }
  __device__ int dynamic_bytes() const { return 0; }
  __device__ int index() const {
    return static_cast<int>(blockIdx.x * (blockDim.x / kLanes) + threadIdx.x / kLanes);
  }
  /// The index of the warp's first group.
  __device__ int first_index() const {
    return static_cast<int>(blockIdx.x * (blockDim.x / kLanes) +
                            threadIdx.x / kWarpSize * (kWarpSize / kLanes));
  }
  __device__ int count() const { return static_cast<int>(gridDim.x * (blockDim.x / kLanes)); }
  /// Exactly one group of each block does.
  __device__ bool leads() const { return threadIdx.x < kLanes; }
  /// The rank among the group's threads in this block.
  __device__ int local_rank() const { return rank(); }
  __device__ Ticket post(float lane_sum) { return {lane_sum}; }
  __device__ void collect(const Ticket& ticket, float& a, float& b) {
    const int first = static_cast<int>(threadIdx.x) % kWarpSize / kLanes * kLanes;
    a = __shfl_sync(kAllLanes, ticket.lane_sum, first);
    b = __shfl_sync(kAllLanes, ticket.lane_sum, first + 1);
  }
  __device__ void finish() {}
};
using WarpPairSum = LanePairSum<kWarpSize>;

/// A block of at most 16 warps has the row.
class BlockPairSum {
 public:
  static constexpr bool kIsWarp = false;
  static constexpr int kBlocks = 1;
  static constexpr int kLanes = kWarpSize;
  static constexpr unsigned kMaxWarps = 16, kWarpsAtOnce = 4;
  struct Storage {
    alignas(16) float partial[kPairBuffers][2 * kMaxWarps];  // of each warp a, b
  };
  using Ticket = int;

  __device__ explicit BlockPairSum(Storage& storage) : storage_(storage) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  /// Threads of the group in this block, blocks of the group, and what it takes from the start of dynamic shared memory.
  __device__ int local_size() const { return static_cast<int>(blockDim.x); }
  __device__ int blocks() const { return 1; }
  __device__ int dynamic_bytes() const { return 0; }
  __device__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ int first_index() const { return index(); }
  __device__ int count() const { return static_cast<int>(gridDim.x); }
  __device__ bool leads() const { return true; }
  __device__ int local_rank() const { return static_cast<int>(threadIdx.x); }

  __device__ Ticket post(float lane_sum) {
    const unsigned buffer = next_++ % kPairBuffers, warp = threadIdx.x / kWarpSize,
                   lane = threadIdx.x % kWarpSize, last = blockDim.x / kWarpSize - 1;
    // The last warp writes zeros for those that its four lacks.
    if (lane < (warp == last ? 2 * (kWarpsAtOnce - warp % kWarpsAtOnce) : 2u))
      storage_.partial[buffer][2 * warp + lane] = lane < 2 ? lane_sum : 0.0f;
    return static_cast<Ticket>(buffer);
  }
  /// In the order of the posts. One barrier: with four buffers no thread writes what another still reads.
  /// Every thread adds up all warps: wide reads that all lanes share cost less than a butterfly of shuffles.
  __device__ void collect(Ticket buffer, float& a, float& b) {
    __syncthreads();
    const auto* pairs = reinterpret_cast<const float4*>(storage_.partial[buffer]);
    a = b = 0.0f;
#pragma unroll
    for (unsigned first = 0; first < kMaxWarps; first += kWarpsAtOnce) {
      if (first > 0 && first >= blockDim.x / kWarpSize) break;
      const float4 two = pairs[first / 2], others = pairs[first / 2 + 1];
      a += (two.x + two.z) + (others.x + others.z);
      b += (two.y + two.w) + (others.y + others.w);
    }
  }
  __device__ void finish() {}

 private:
  Storage& storage_;
  int next_ = 0;
};

/// The blocks of a cluster share the row, each a part of its columns; kBlocks = 1: one block, whose warps
/// need not wait for each other between post and collect; 0: as many blocks as the launch says, at most 16, whose sums
/// are in dynamic shared memory because their number is not known to the compiler. Needs sm_90.
template <int kBlocks_>
class ClusterPairSum {
 public:
  static constexpr bool kIsWarp = false;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kLanes = kWarpSize;
  static constexpr bool kAny = kBlocks == 0;
  static constexpr int kMaxSums = kBlocks * kWarpSize;  // of 16 warps a block
  struct InStatic {
    unsigned long long barrier[kPairBuffers];
    float partial[kPairBuffers][kMaxSums > 0 ? kMaxSums : 1];
  };
  struct InDynamic {};
  using Storage = std::conditional_t<kAny, InDynamic, InStatic>;
  static constexpr int kBarrierBytes = kPairBuffers * 8;
  using Ticket = int;
  /// A multiple of 16.
  static constexpr int dynamic_bytes(int blocks, int threads) {
    return kAny ? kBarrierBytes + kPairBuffers * 2 * blocks * (threads / kWarpSize) * 4 : 0;
  }

  __device__ explicit ClusterPairSum(Storage& storage) {
    const int warps = blockDim.x / kWarpSize;
    if constexpr (kAny) {
      storage_ = static_cast<uint32_t>(__cvta_generic_to_shared(ptx::dynamic_shared()));
    } else {
      storage_ = static_cast<uint32_t>(__cvta_generic_to_shared(&storage));
    }
    if (threadIdx.x == 0) {
      for (int i = 0; i < kPairBuffers; ++i) ptx::mbarrier_init(barrier(i), is_alone() ? 2 * warps : 1);
      ptx::fence_barrier_init();
    }
    if constexpr (kBlocks != 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
  }
  __device__ int rank() const {
    return static_cast<int>(threadIdx.x + (kBlocks != 1 ? ptx::cluster_rank() * blockDim.x : 0));
  }
  __device__ int blocks() const { return kAny ? static_cast<int>(ptx::cluster_size()) : kBlocks; }
  __device__ int local_size() const { return static_cast<int>(blockDim.x); }
  __device__ int dynamic_bytes() const { return dynamic_bytes(blocks(), local_size()); }
  __device__ int size() const { return local_size() * blocks(); }
  __device__ int index() const { return static_cast<int>(blockIdx.x) / blocks(); }
  __device__ int first_index() const { return index(); }
  __device__ int count() const { return static_cast<int>(gridDim.x) / blocks(); }
  __device__ bool leads() const { return true; }
  __device__ int local_rank() const { return static_cast<int>(threadIdx.x); }

  __device__ Ticket post(float lane_sum) {
    const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize, warps = blockDim.x / kWarpSize;
    const int ticket = next_++, buffer = ticket % kPairBuffers;
    if (!is_alone()) {
      const int sums = 2 * blocks() * warps;
      if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(barrier(buffer), sums * sizeof(float));
      if (lane < 2 * blocks()) {  // lanes 2 c and 2 c + 1 serve block c
        const int slot = 2 * (static_cast<int>(ptx::cluster_rank()) * warps + warp) + lane % 2;
        ptx::cluster_store_async(ptx::cluster_address(slot_address(buffer, slot), lane / 2), lane_sum,
                                 ptx::cluster_address(barrier(buffer), lane / 2));
      }
    } else if (lane < 2) {
      ptx::store_shared_float(slot_address(buffer, 2 * warp + lane), lane_sum);
      ptx::mbarrier_arrive(barrier(buffer));
    }
    return ticket;
  }
  __device__ void collect(Ticket ticket, float& a, float& b) {
    const int buffer = ticket % kPairBuffers;
    const int lane = threadIdx.x % kWarpSize, sums = all_sums();
    ptx::mbarrier_wait(barrier(buffer), (ticket / kPairBuffers) % 2);
    float v = 0.0f;
#pragma unroll(kAny ? 4 : kBlocks)
    for (int first = 0; first < (kAny ? sums : kMaxSums); first += kWarpSize) {
      if (first + lane < sums) v += ptx::load_shared_float(slot_address(buffer, first + lane));
    }
#pragma unroll
    for (int offset = 2; offset < kWarpSize; offset *= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
    a = __shfl_sync(kAllLanes, v, 0);
    b = __shfl_sync(kAllLanes, v, 1);
  }
  /// Before the block ends: others may still write to it.
  __device__ void finish() {
    if constexpr (kBlocks != 1) ptx::cluster_sync();
  }

 private:
  /// One block stores to itself as any block does. To its own cluster's memory it could not: where a launch has no
  /// clusters, st.async is an illegal instruction.
  __device__ bool is_alone() const { return kBlocks == 1 || (kAny && blocks() == 1); }
  __device__ int all_sums() const { return 2 * blocks() * (local_size() / kWarpSize); }
  __device__ uint32_t slot_address(int buffer, int slot) const {
    const int of_buffer = kAny ? all_sums() : kMaxSums;
    return storage_ + kBarrierBytes + (buffer * of_buffer + slot) * static_cast<uint32_t>(sizeof(float));
  }
  __device__ uint32_t barrier(int buffer) const { return storage_ + buffer * 8; }

  uint32_t storage_;
  int next_ = 0;
};

}  // namespace plab::cuda
