// SPDX-License-Identifier: Apache-2.0
// One or two 16-bit GEMMs in one launch, for problems that are too small for cuBLAS: a 512 x 512 GEMM takes two
// microseconds, less than the time between two launches.
//
// Mapping   a block makes a tile: one warp copies (TMA), each warpgroup multiplies 64 rows (wgmma). Two share
//           an SM, so that one starts or ends while the other multiplies.
// Bytes     each operand once per tile across it, from L2.     Flops  2 rows columns depth.
// Roof      latency: of the launch, of the first copy, of the sums that depend on each other.
// Contract  operands and rows start at multiples of 16 bytes. With
//           programmatic dependent launch a launch may start while the previous one of these still runs,
//           and waits before it reads.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/vec.cuh"
#include "ops/heavy_layer/sm90/matrix_map.h"
#include "ops/heavy_layer/sm90/store_pairs.cuh"
#include "ops/heavy_layer/tanh.cuh"

namespace plab::ops {

/// A row-major operand, or the transpose of one. Along the depth of the product its elements are neighbours
/// or a row apart; wgmma takes both.
struct Operand {
  const void* data;
  bool is_transposed = false;
};

/// C = A B, rows x depth by depth x columns, or with a bias C = tanh(A B + bias).
struct Product {
  Operand a, b;
  void* c;
  int64_t rows, columns, depth;
  const void* bias = nullptr;
};

/// Column sums that a launch computes besides its GEMMs.
struct ColumnSums {
  const float* partial;  // chunks x d
  void* sums;
  int64_t chunks, d;
};

namespace products {

using namespace cuda::ptx;

constexpr int kBox = 64, kBoxBytes = kBox * 128;  // what one copy brings: 64 rows of 64 elements
constexpr int kDepth = kBox, kStep = 16;          // elements of depth in a stage, and in a wgmma
constexpr int kWarpgroup = 128, kAlignment = 1024;
constexpr int kSumColumns = 32, kSumLines = 4;

template <int kWarpgroups_, int kColumns_, int kStages_>
struct Tile {
  static constexpr int kWarpgroups = kWarpgroups_, kRows = 64 * kWarpgroups, kColumns = kColumns_;
  static constexpr int kStages = kStages_, kConsumers = kWarpgroups * kWarpgroup, kThreads = kConsumers + 32;
  static constexpr int kABytes = kRows / kBox * kBoxBytes;
  static constexpr int kStageBytes = kABytes + kColumns / kBox * kBoxBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;
};
using LargeTile = Tile<2, 128, 3>;  // a wave of them is enough for the GPU
using SmallTile = Tile<1, 64, 6>;   // more blocks where there would be few large tiles

// As the kernel takes it. The maps' rows are the matrices' in memory.
struct Task {
  CUtensorMap a, b;
  void* c;
  const void* bias;
  int rows, columns, depth, tiles_across;
  bool a_transposed, b_transposed;
};

struct Launch {
  Task tasks[2];
  ColumnSums sums;
  int blocks[2];
};

template <class Element, class T, bool kATransposed, bool kBTransposed>
__device__ __forceinline__ void multiply(float (&sum)[T::kColumns / 2], uint32_t a, uint32_t full,
                                         uint32_t empty, int steps) {
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  for (int k = 0; k < steps; ++k) {
    const int s = k % T::kStages;
    const uint32_t stage = a + s * T::kStageBytes, rows = stage + warpgroup * kBoxBytes;
    const uint64_t left = kATransposed ? descriptor_mn_major(rows, kBoxBytes) : descriptor_k_major(rows);
    const uint64_t right = kBTransposed ? descriptor_k_major(stage + T::kABytes)
                                        : descriptor_mn_major(stage + T::kABytes, kBoxBytes);
    mbarrier_wait(full + 8 * s, k / T::kStages & 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDepth / kStep; ++step)
      Wgmma<Element, T::kColumns, kATransposed, !kBTransposed>::ss(
          sum, descriptor_step(left, step * kStep * (kATransposed ? 128 : 2)),
          descriptor_step(right, step * kStep * (kBTransposed ? 2 : 128)), k > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0 && threadIdx.x % kWarpgroup == 0) mbarrier_arrive(empty + 8 * ((k - 1) % T::kStages));
  }
  wgmma_wait<0>();
  keep(sum);
}

template <class T>
__device__ __forceinline__ void copy(const Task& task, uint32_t tiles, uint32_t full, uint32_t empty, int row,
                                     int column, int steps) {
  for (int k = 0; k < steps; ++k) {
    const int s = k % T::kStages, depth = k * kDepth;
    if (k >= T::kStages) mbarrier_wait(empty + 8 * s, (k / T::kStages - 1) & 1);
    const uint32_t stage = tiles + s * T::kStageBytes, barrier = full + 8 * s;
    mbarrier_arrive_expect_tx(barrier, T::kStageBytes);
#pragma unroll
    for (int i = 0; i < T::kRows; i += kBox)
      tma_load_2d(stage + i / kBox * kBoxBytes, &task.a, barrier, task.a_transposed ? row + i : depth,
                  task.a_transposed ? depth : row + i);
#pragma unroll
    for (int i = 0; i < T::kColumns; i += kBox)
      tma_load_2d(stage + T::kABytes + i / kBox * kBoxBytes, &task.b, barrier,
                  task.b_transposed ? depth : column + i, task.b_transposed ? column + i : depth);
  }
}

template <class Element>
__device__ __forceinline__ void add_up_columns(const ColumnSums& sums, int block) {
  __shared__ float lines[kSumLines][kSumColumns];
  const int lane = static_cast<int>(threadIdx.x) % kSumColumns;
  const int line = static_cast<int>(threadIdx.x) / kSumColumns;
  const int64_t column = int64_t{block} * kSumColumns + lane;
  if (line >= kSumLines) return;
  float sum = 0.0f;
  if (column < sums.d) {
#pragma unroll 16
    for (int64_t chunk = line; chunk < sums.chunks; chunk += kSumLines)
      sum += sums.partial[chunk * sums.d + column];
  }
  lines[line][lane] = sum;
  named_barrier_sync(1, kSumLines * kSumColumns);
  if (line > 0 || column >= sums.d) return;
#pragma unroll
  for (int l = 1; l < kSumLines; ++l) sum += lines[l][lane];
  static_cast<Element*>(sums.sums)[column] = cuda::from_float<Element>(sum);
}

template <class Element, class T>
__global__ void __launch_bounds__(T::kThreads, 2) products_kernel(const __grid_constant__ Launch launch) {
  extern __shared__ char shared[];
  __shared__ uint64_t full_barriers[T::kStages], empty_barriers[T::kStages];
  const auto address = [](const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); };
  const uint32_t tiles = (address(shared) + kAlignment - 1) & ~(kAlignment - 1);
  const uint32_t full = address(full_barriers), empty = address(empty_barriers);
  const bool copies = threadIdx.x >= T::kConsumers;
  launch_dependents();

  int block = static_cast<int>(blockIdx.x);
  const bool second = block >= launch.blocks[0];
  if (second) block -= launch.blocks[0];
  if (second && block >= launch.blocks[1]) {
    wait_for_previous_grid();
    return add_up_columns<Element>(launch.sums, block - launch.blocks[1]);
  }
  const Task& task = launch.tasks[second];
  const int row = block / task.tiles_across * T::kRows, column = block % task.tiles_across * T::kColumns;
  const int steps = cuda::ceil_div(task.depth, kDepth);

  if (threadIdx.x == T::kConsumers) {
    prefetch_tensor_map(&task.a);
    prefetch_tensor_map(&task.b);
    for (int s = 0; s < T::kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, T::kWarpgroups);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous_grid();

  if (copies) {
    if (threadIdx.x == T::kConsumers) copy<T>(task, tiles, full, empty, row, column, steps);
    return;
  }
  float sum[T::kColumns / 2];
  if (task.a_transposed) {
    if (task.b_transposed)
      multiply<Element, T, true, true>(sum, tiles, full, empty, steps);
    else
      multiply<Element, T, true, false>(sum, tiles, full, empty, steps);
  } else {
    if (task.b_transposed)
      multiply<Element, T, false, true>(sum, tiles, full, empty, steps);
    else
      multiply<Element, T, false, false>(sum, tiles, full, empty, steps);
  }

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_row = row + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  auto* c = static_cast<Element*>(task.c);
  if (task.bias != nullptr) {
    const auto* bias = static_cast<const Element*>(task.bias) + column + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < T::kColumns / 2; ++i) {  // its columns: 8 to a group, of which a thread has two
      const int c = i / 4 * 8 + i % 2;
      const float b = column + 2 * (lane % 4) + c < task.columns ? cuda::to_float(bias[c]) : 0.0f;
      sum[i] = fast_tanh<Element>(sum[i] + b);
    }
  }
#pragma unroll
  for (int group = 0; group < T::kColumns / 8; group += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t r = first_row + 8 * half;
      const float* v = sum + 4 * group + 2 * half;
      store_pairs(c + r * task.columns, column + 8 * group, task.columns, r < task.rows,
                  {v[0], v[1], v[4], v[5]});
    }
  }
}

template <class T>
Task make_task(const Product& product, ElementType type) {
  const auto map = [type](const Operand& operand, int64_t rows, int64_t columns) {
    return operand.is_transposed ? matrix_map(operand.data, columns, rows, type, kBox)
                                 : matrix_map(operand.data, rows, columns, type, kBox);
  };
  Task task{};
  task.a = map(product.a, product.rows, product.depth);
  task.b = map(product.b, product.depth, product.columns);
  task.c = product.c;
  task.bias = product.bias;
  task.rows = static_cast<int>(product.rows);
  task.columns = static_cast<int>(product.columns);
  task.depth = static_cast<int>(product.depth);
  task.tiles_across = static_cast<int>(cuda::ceil_div<int64_t>(product.columns, T::kColumns));
  task.a_transposed = product.a.is_transposed;
  task.b_transposed = product.b.is_transposed;
  return task;
}

template <class T>
int tiles_of(const Task& task) {
  return cuda::ceil_div(task.rows, T::kRows) * task.tiles_across;
}

// follows: the launch before, on this stream, is one of these.
template <class Element, class T>
void launch_tasks(const Launch& launch, bool follows, cudaStream_t stream) {
  const auto kernel = products_kernel<Element, T>;
  PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes));
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const int sums = launch.sums.partial == nullptr
                       ? 0
                       : static_cast<int>(cuda::ceil_div<int64_t>(launch.sums.d, kSumColumns));
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(launch.blocks[0] + launch.blocks[1] + sums);
  config.blockDim = T::kThreads;
  config.dynamicSmemBytes = T::kSharedBytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = follows ? 1 : 0;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, launch));
}

}  // namespace products

}  // namespace plab::ops
