// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu forward: Y = gelu(LN(X) * W + B), with a residual of X + R, which is written too; keeps
// mean and rstd (fp32) for the backward.
//
// Mapping   a group of threads per row: a warp, a block, or a cluster of blocks. Both kernels read X once.
//           forward_kernel prefetches the next rows into shared memory and exchanges the sums of row k + 1
//           while row k is finished, so no thread waits for the slowest warp. forward_direct_kernel loads a
//           row directly into registers; other blocks hide the latency.
// Bytes     rows * (2 d e + 8), e = bytes per element, twice that with a residual; W and B once per block
//           (L2).
// Flops     about 30 per element.
// Roof      memory: an H200 feeds 1.07e12 bf16 elements/s, which leaves 28 instruction slots for each;
//           README.md counts ours.
// Contract  layer_norm_gelu.h; kExact and kVector: rows start at 16 bytes and d is a multiple of a vector. kShifted, of
//           forward_kernel alone: no gaps between rows, and the matrices start at 16 bytes.
#pragma once

#include "cuda/pair_sum.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/epilogue.cuh"
#include "ops/layer_norm_gelu/portable/load.cuh"
#include "ops/layer_norm_gelu/portable/statistics.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads threads must fit on an SM together, which limits the registers of each to 65536 /
/// kResidentThreads. kStages: rows in the ring, 0 for forward_direct_kernel.
template <class Tile_, class Group_, int kResidentThreads_, Weights kWeights_, int kStages_, GeluForm kForm_,
          Residual kResidual_ = Residual::kNo>
struct ForwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  using Ring = RowRing<Tile, kStages_>;
  using WeightsOfRow = WeightStore<Tile, kWeights_>;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr int kMaxBlock = kResidentThreads_ > 1024 ? 512 : kResidentThreads_;
  static constexpr int kMinBlocks = kResidentThreads_ / kMaxBlock;
  static constexpr int kStages = kStages_;
  static constexpr Weights kWeights = kWeights_;
  static constexpr GeluForm kForm = kForm_;
  static constexpr Residual kResidual = kResidual_;
  static constexpr int kRowsAtATime =  // of a block, or cluster
      Group::kIsWarp ? kWarpsPerBlock * cuda::kWarpSize / Group::kLanes : 1;
  /// Of forward_direct_kernel: a group has one row. Only rows of a few vectors are too short for that.
  static constexpr bool kOneRow = !Group::kIsWarp || Tile::kVecs > 1;
  static constexpr bool kTwoPasses = sizeof(Element) == 4;  // always; else where one pass is not enough
  using FirstPass = std::conditional_t<kTwoPasses, MeanShare<Tile>, Moments<Tile>>;

  static constexpr int weight_bytes(int threads_per_row) {
    return WeightsOfRow::shared_bytes(threads_per_row);
  }
  static constexpr int shared_bytes(int threads_per_row, int threads, bool has_residual) {
    if (kStages == 0) return 0;
    return weight_bytes(threads_per_row) + (has_residual ? 2 : 1) * Ring::shared_bytes(threads);
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kMaxBlock, Config::kMinBlocks)
    forward_kernel(const __grid_constant__ ForwardParams params, RowOrder order) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  static __shared__ typename Config::Group::Storage storage;
  typename Config::Group group(storage);
  float4* shared = cuda::ptx::dynamic_shared() + group.dynamic_bytes() / 16;
  const float inverse_cols = order.inverse_cols;
  const float eps = static_cast<float>(params.eps);

  const int64_t first = order.interleaved ? group.index() : group.index() * order.rows_per_group;
  const Tile tile =
      tile_of<Tile>(group, params.cols, static_cast<const Element*>(params.x) + first * params.x_row_stride);
  const int64_t step = order.interleaved ? group.count() : 1;
  const int64_t left = order.interleaved ? (params.rows - first + step - 1) / step : params.rows - first;
  const bool whole = order.interleaved || left < order.rows_per_group;
  const int count = static_cast<int>(whole ? left : order.rows_per_group);
  if (count <= 0 && Config::Group::kIsWarp && Config::kWeights != Weights::kShared) return;

  char* memory = reinterpret_cast<char*>(shared);
  memory += Config::weight_bytes(group.local_size());
  typename Config::Ring ring(tile, memory, threadIdx.x, blockDim.x);
  typename Config::Ring residual_ring(tile, memory + Config::Ring::shared_bytes(blockDim.x), threadIdx.x,
                                      blockDim.x);
  const Element* residual_ahead = nullptr;
  Element* sum_next = nullptr;
  int64_t residual_step = 0;
  with_residual<Config::kResidual>(params.residual, [&] {
    residual_ahead = static_cast<const Element*>(params.residual) + first * params.residual_row_stride;
    residual_step = step * params.residual_row_stride;
    sum_next = static_cast<Element*>(params.sum) + first * params.cols;
  });
  const int64_t x_step = step * params.x_row_stride, y_step = step * params.cols;
  const Element* x_ahead = static_cast<const Element*>(params.x) + first * params.x_row_stride;
  Element* y = static_cast<Element*>(params.y) + first * params.cols;
  RingSlot ahead{0}, now{0};
  const bool has_last = first + (count - 1) * step == params.rows - 1;
  int requested = 0;
  auto request = [&] {
    if (requested < count) {
      const bool is_last = has_last && requested == count - 1;
      ring.request(x_ahead, ahead, is_last);
      x_ahead += x_step;
      with_residual<Config::kResidual>(params.residual, [&] {
        residual_ring.request(residual_ahead, ahead, is_last);
        residual_ahead += residual_step;
      });
      ahead = ring.next(ahead);
    }
    ++requested;
    cuda::ptx::cp_async_commit_group();
  };
#pragma unroll
  for (int s = 0; s < Config::kStages - 1; ++s) request();
  typename Config::WeightsOfRow weights(tile, static_cast<const Element*>(params.weight),
                                        static_cast<const Element*>(params.bias), group, shared);
  if constexpr (Config::kWeights == Weights::kShared) __syncthreads();
  if (count <= 0) return group.finish();

  auto post = [&](RingSlot slot) {  // the next row, once it has arrived
    cuda::ptx::cp_async_wait_group<Config::kStages - 2>();
    ring.arrived(slot);
    const auto ticket = post_first_sums<Config>(tile, group, ring, residual_ring, slot, inverse_cols,
                                                params.residual, sum_next);
    sum_next += y_step;
    return ticket;
  };
  auto ticket = post(now);
  for (int k = 0; k < count; ++k) {
    request();
    auto next_ticket = ticket;
    const RingSlot next = ring.next(now);
    if (k + 1 < count) next_ticket = post(next);
    const RowStatistics s = statistics<Config>(tile, group, ticket, ring, now, inverse_cols, eps);
    if (group.rank() == 0) {
      const int64_t row = first + k * step;
      static_cast<float*>(params.mean)[row] = s.mean;
      static_cast<float*>(params.rstd)[row] = s.rstd;
    }
    weights.next_row();
    finish_row<Config>(tile, ring, now, s, weights, y);
    y += y_step;
    now = next, ticket = next_ticket;
  }
  group.finish();
}

/// Prefetches kRows rows, or as many as there are, into L2, for the block that will read them soon.
template <int kRows, class Element>
__device__ __forceinline__ void prefetch_rows(const Element* first, int64_t available, int64_t cols,
                                              int64_t stride) {
  const int row_bytes = static_cast<int>(cols) * static_cast<int>(sizeof(Element));
  if constexpr (kRows == 1) return cuda::ptx::prefetch_l2(first, row_bytes);
  const int rows = available < kRows ? static_cast<int>(available) : kRows;
  if (stride == cols) return cuda::ptx::prefetch_l2(first, rows * row_bytes);
  for (int r = 0; r < rows; ++r) cuda::ptx::prefetch_l2(first + r * stride, row_bytes);
}

/// The simplest scheme: a row is loaded directly into registers; other blocks hide the latency.
template <class Config>
__global__ void __launch_bounds__(Config::kMaxBlock, Config::kMinBlocks)
    forward_direct_kernel(const __grid_constant__ ForwardParams params, RowOrder order) {
  using Tile = typename Config::Tile;
  using Group = typename Config::Group;
  using Element = typename Config::Element;
  using Rows = RowInRegisters<Tile>;
  static __shared__ typename Group::Storage storage;
  Group group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const float eps = static_cast<float>(params.eps);
  const int64_t rows_per_group = Config::kOneRow ? 1 : order.rows_per_group;
  // All lanes of a warp execute all iterations: a group without a row of its own reads the last row again.
  const int64_t first = group.index() * rows_per_group;
  const int64_t left = params.rows - group.first_index() * rows_per_group;
  const int64_t count = left < rows_per_group ? left : rows_per_group;
  typename Config::WeightsOfRow weights(tile, static_cast<const Element*>(params.weight),
                                        static_cast<const Element*>(params.bias), group, nullptr);
  const auto x_of = [&](int64_t row) {
    return static_cast<const Element*>(params.x) + row * params.x_row_stride;
  };
  const auto residual_of = [&](int64_t row) {
    return static_cast<const Element*>(params.residual) + row * params.residual_row_stride;
  };
  if (Config::kOneRow && Tile::kAccess != Access::kScalar && threadIdx.x == 0) {
    // Prefetches the rows of the block that will replace this one. One thread does it: the instruction takes a
    // warp-uniform address, so several lanes would become a loop.
    const int64_t next = static_cast<int64_t>(blockIdx.x) * Config::kRowsAtATime + order.groups_ahead;
    if (next < params.rows) {
      constexpr int kRows = Config::kRowsAtATime;
      prefetch_rows<kRows>(x_of(next), params.rows - next, params.cols, params.x_row_stride);
      with_residual<Config::kResidual>(params.residual, [&] {
        prefetch_rows<kRows>(residual_of(next), params.rows - next, params.cols, params.residual_row_stride);
      });
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    const bool has_row = Group::kLanes == cuda::kWarpSize || first + k < params.rows;
    const int64_t row = has_row ? first + k : params.rows - 1;
    Rows rows, residual;
    rows.load(tile, x_of(row));
    Element* sum = nullptr;
    with_residual<Config::kResidual>(params.residual, [&] {
      residual.load(tile, residual_of(row));
      sum = static_cast<Element*>(params.sum) + row * params.cols;
    });
    weights.next_row();
    const auto ticket = post_first_sums<Config>(tile, group, rows, residual, RingSlot{0}, order.inverse_cols,
                                                params.residual, sum, has_row);
    const RowStatistics s =
        statistics<Config>(tile, group, ticket, rows, RingSlot{0}, order.inverse_cols, eps);
    if (!has_row) continue;
    if (group.rank() == 0) {
      static_cast<float*>(params.mean)[row] = s.mean;
      static_cast<float*>(params.rstd)[row] = s.rstd;
    }
    finish_row<Config>(tile, rows, RingSlot{0}, s, weights,
                       static_cast<Element*>(params.y) + row * params.cols);
  }
  group.finish();
}

}  // namespace plab::ops::layer_norm_gelu
