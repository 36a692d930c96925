// SPDX-License-Identifier: Apache-2.0
// From run-time facts (element type, GELU form, row plan) to compile-time types, and from those to a grid;
// for forward and backward alike.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/pair_sum.cuh"
#include "ops/device_types.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;

/// Whether every row of every matrix starts at a multiple of 16 bytes.
inline bool aligned(std::initializer_list<const void*> pointers, std::initializer_list<int64_t> row_strides,
                    int element_bytes) {
  uint64_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uint64_t>(pointer);
  for (const int64_t stride : row_strides) bits |= static_cast<uint64_t>(stride * element_bytes);
  return bits % cuda::kVecBytes == 0;
}

/// Calls function.operator()<kForm>().
template <class Function>
void dispatch_form(GeluForm form, Function&& function) {
  if (form == GeluForm::kErf) {
    function.template operator()<GeluForm::kErf>();
  } else {
    function.template operator()<GeluForm::kTanh>();
  }
}

/// Calls function.operator()<Element, kForm>().
template <class Function>
void dispatch_element_and_form(ElementType element, GeluForm form, Function&& function) {
  dispatch_device(element, [&]<class Element>(Tag<Element>) {
    dispatch_form(form, [&]<GeluForm kForm>() { function.template operator()<Element, kForm>(); });
  });
}

/// Calls function(Tag<Tile>, Tag<Group>) for a plan whose row fits a block (plan.vecs > 0). kChoices as in
/// plan_row.
template <class Element, int kFirst, int... kOthers, class Function>
void dispatch_tile(const RowPlan& plan, Function&& function) {
  const auto with_vecs = [&]<int kVecs, Access kAccess>() {
    using Tile = RowTile<Element, kVecs, kAccess>;
    if (plan.threads == cuda::kWarpSize) return function(Tag<Tile>{}, Tag<cuda::WarpPairSum>{});
    return function(Tag<Tile>{}, Tag<cuda::BlockPairSum>{});
  };
  const auto if_exact = [&]<int kVecs>(Constant<kVecs>) {
    if (plan.vecs == kVecs) with_vecs.template operator()<kVecs, Access::kExact>();
  };
  switch (plan.access) {
    case Access::kScalar:
      return with_vecs.template operator()<1, Access::kScalar>();
    case Access::kVector:
      if (plan.vecs == 1) return with_vecs.template operator()<1, Access::kVector>();
      return with_vecs.template operator()<kFirst, Access::kVector>();
    case Access::kExact:
      if_exact(Constant<kFirst>{});
      (if_exact(Constant<kOthers>{}), ...);
  }
}

/// A grid for one kernel. `units`: clusters, or blocks where a block is enough for a row.
struct Launch {
  int64_t units;
  int threads, shared_bytes;
  RowOrder order;
};

/// Whether a block of Config can be had at all.
template <class Config>
bool fits(int threads_per_row) {
  constexpr int kRows = Config::kRowsAtATime;
  constexpr int kStatic = sizeof(typename Config::Group::Storage);
  return Config::shared_bytes(threads_per_row, kRows * threads_per_row) + kStatic <= cuda::max_shared_bytes();
}

template <class Config>
cudaLaunchConfig_t launch_config(int64_t units, int threads, int shared_bytes, cudaLaunchAttribute& cluster) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(units * Config::Group::kBlocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(Config::Group::kBlocks), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  return config;
}

/// Blocks or clusters that the GPU has room for at once. Clusters do not fill it: their blocks need
/// neighbours.
template <class Config, auto kKernel>
int64_t resident_units(int threads, int shared_bytes) {
  const int blocks = cuda::blocks_per_multiprocessor<kKernel>(threads, shared_bytes);
  if constexpr (Config::Group::kBlocks == 1) {
    return static_cast<int64_t>(cuda::multiprocessors()) * blocks;
  } else {
    static std::array<std::array<std::atomic<int>, 33>, cuda::kMaxDevices> cached{};
    std::atomic<int>& slot = cached[cuda::current_device()][threads / 32];
    int known = slot.load(std::memory_order_relaxed);
    if (known == 0) {
      cudaLaunchAttribute cluster{};
      const cudaLaunchConfig_t config = launch_config<Config>(1, threads, shared_bytes, cluster);
      PLAB_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&known, kKernel, &config));
      if (known == 0)
        throw Error("a cluster of blocks of " + std::to_string(threads) + " threads does not fit");
      slot.store(known, std::memory_order_relaxed);
    }
    return known;
  }
}

/// `threads_per_row`: of one block. `waves`: times as many groups as are resident at once; 0: no more blocks
/// than multiprocessors.
template <class Config, auto kKernel>
Launch plan_launch(int64_t rows, int64_t cols, int threads_per_row, int waves, bool interleaved) {
  constexpr int kRows = Config::kRowsAtATime;
  const int threads = kRows * threads_per_row, shared_bytes = Config::shared_bytes(threads_per_row, threads);
  int64_t units = resident_units<Config, kKernel>(threads, shared_bytes);
  if (waves == 0 && units > cuda::multiprocessors()) units = cuda::multiprocessors();
  const int64_t resident = units * kRows;
  const cuda::RowRuns runs = cuda::cut_rows(rows, resident, waves == 0 ? 1 : waves);
  return {cuda::ceil_div<int64_t>(runs.groups, kRows),
          threads,
          shared_bytes,
          {runs.rows_per_group, interleaved, resident, 1.0f / static_cast<float>(cols)}};
}

template <class Config, class Params, class Kernel>
void start(Kernel* kernel, const Launch& launch, const Params& params, cudaStream_t stream) {
  if constexpr (Config::Group::kBlocks == 1) {
    kernel<<<static_cast<int>(launch.units), launch.threads, launch.shared_bytes, stream>>>(params,
                                                                                            launch.order);
    PLAB_CHECK_LAUNCH();
  } else {
    cudaLaunchAttribute cluster{};
    cudaLaunchConfig_t config =
        launch_config<Config>(launch.units, launch.threads, launch.shared_bytes, cluster);
    config.stream = stream;
    PLAB_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, launch.order));
  }
}

}  // namespace plab::ops::layer_norm_gelu
