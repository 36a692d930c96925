// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/cluster.cuh: the blocks of a cluster have regions of one memory (mma_sync.cuh).
#pragma once

#include <cstdint>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace plab::cuda::ptx {

inline std::uint32_t cluster_rank() { return on_cpu::rank(); }
inline std::uint32_t cluster_size() { return static_cast<std::uint32_t>(on_cpu::blocks_of_cluster.size()); }
inline std::uint32_t cluster_address(std::uint32_t shared, std::uint32_t rank) {
  return (shared & on_cpu::kDynamic) | (shared % kRegion + rank * kRegion);
}
inline void cluster_store_async(std::uint32_t address, float value, std::uint32_t barrier) {
  at<float>(address) = value;
  mbarrier_at(barrier).change(0, -4);
}
inline float cluster_load(std::uint32_t address) { return at<float>(address); }
inline float4 cluster_load_4(std::uint32_t address) { return at<float4>(address); }
inline void store_shared_float(std::uint32_t address, float value) { at<float>(address) = value; }
inline void cluster_sync() { on_cpu::cluster->arrive_and_wait(); }

}  // namespace plab::cuda::ptx
