// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward: dX, and the sums dW, dB over all rows.
// With H = (X - mean) rstd and dZ = dY gelu'(H W + B):  dW = sum dZ H,  dB = sum dZ,  dH = dZ W,
//      dX = rstd (dH - avg(dH) - H avg(dH H)), averages over a row.
// Mapping   one group of threads per row as in the forward, the next row of X and dY on its way; a thread
// keeps the sums for
//           its columns over all rows of its group, in registers or, for long rows, in shared memory. They
//           leave once per block, and a second kernel adds the blocks' sums in a fixed order: no atomics, the
//           same bits in every run. So all blocks are resident at once here: each further wave would move 16
//           d more bytes per block.
// Bytes     rows * (3 d e + 8), e = bytes per element, and 16 d per block for the sums (L2).   Flops about 40
// per element. Roof      memory: H200 feeds 0.71e12 bf16 elements/s, 42 instruction slots for each; README.md
// counts ours. Contract  layer_norm_gelu.h; kExact and kVector: rows start at 16 bytes and d is a multiple of
// a vector.
#pragma once

#include "cuda/math.cuh"
#include "cuda/reduce.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/next_row.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"
#include "ops/layer_norm_gelu/weights.cuh"

namespace plab::ops::layer_norm_gelu {

/// Where a thread keeps the sums of its columns.
enum class Sums {
  kRegisters,  // 2 registers an element
  kShared,     // 16 bytes of shared memory traffic an element and row
};

/// kResidentThreads as in ForwardConfig; kWarps: of a block whose warps have a row each; kAheadX and
/// kAheadDy: where the next rows arrive.
template <class Tile_, class Group_, int kResidentThreads_, int kWarps_, Weights kWeights_, Sums kSums_,
          GeluForm kForm_, Ahead kAheadX_ = Ahead::kRegisters, Ahead kAheadDy_ = Ahead::kRegisters>
struct BackwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  using WeightsOfRow = WeightStore<Tile, kWeights_>;
  using NextX = NextRow<Tile, kAheadX_>;
  using NextDy = NextRow<Tile, kAheadDy_>;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr int kWarps = kWarps_;
  static constexpr Sums kSums = kSums_;
  static constexpr GeluForm kForm = kForm_;
  static_assert(kSums == Sums::kRegisters || !Group::kIsWarp, "warps would need shared sums of their own");

  /// Dynamic shared memory of a group of that many threads.
  static constexpr int shared_bytes(int threads) {
    const int sums =
        kSums == Sums::kShared ? 2 * Tile::kElements * threads * static_cast<int>(sizeof(float)) : 0;
    return WeightsOfRow::shared_bytes(threads) + sums + NextX::shared_bytes(threads) +
           NextDy::shared_bytes(threads);
  }
};

/// The sums of this thread's columns, one per element: add(i, terms) for vector i of each row.
template <class Tile, Sums kSums>
class ColumnSums {
 public:
  static constexpr int kQuads = Tile::kVecSize / 4;

  __device__ ColumnSums(float4* shared, int thread, int threads)
      : shared_(shared + thread), threads_(threads) {
    if constexpr (kSums == Sums::kShared) {
#pragma unroll
      for (int q = 0; q < Tile::kVecs * kQuads; ++q)
        shared_[q * threads_] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  /// Elements 4 q to 4 q + 3 of vector i. In shared memory only this thread touches them: nothing to
  /// synchronise.
  __device__ __forceinline__ void add(int i, int q, float a, float b, float c, float d) {
    if constexpr (kSums == Sums::kShared) {
      float4& sum = shared_[(i * kQuads + q) * threads_];
      const float4 old = sum;
      sum = make_float4(old.x + a, old.y + b, old.z + c, old.w + d);
    } else {
      registers_[i][4 * q] += a, registers_[i][4 * q + 1] += b;
      registers_[i][4 * q + 2] += c, registers_[i][4 * q + 3] += d;
    }
  }

  __device__ __forceinline__ void read(typename Tile::Floats& sums) const {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        if constexpr (kSums == Sums::kShared) {
          sums[i][j] = reinterpret_cast<const float*>(&shared_[(i * kQuads + j / 4) * threads_])[j % 4];
        } else {
          sums[i][j] = registers_[i][j];
        }
      }
    }
  }

 private:
  float4* shared_;
  int threads_;
  typename Tile::Floats registers_ = {};
};

/// Writes the block's sums for this thread's columns. Where warps have rows of their own, the first warp adds
/// the others'.
template <class Config>
__device__ void store_sums(const typename Config::Tile& tile, typename Config::Tile::Floats& sums,
                           float* out) {
  using Tile = typename Config::Tile;
  if constexpr (Config::Group::kIsWarp) {
    static __shared__ float others[Config::kWarps][Tile::kElements][cuda::kWarpSize];
    const int warp = threadIdx.x / cuda::kWarpSize, lane = threadIdx.x % cuda::kWarpSize;
    __syncthreads();  // the buffer may still be read from the call before
#pragma unroll
    for (int e = 0; e < Tile::kElements; ++e)
      others[warp][e][lane] = sums[e / Tile::kVecSize][e % Tile::kVecSize];
    __syncthreads();
    if (warp != 0) return;
#pragma unroll
    for (int e = 0; e < Tile::kElements; ++e) {
      for (int w = 1; w < Config::kWarps; ++w)
        sums[e / Tile::kVecSize][e % Tile::kVecSize] += others[w][e][lane];
    }
  }
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      if (tile.owns(i, j)) out[tile.column(i, j)] = sums[i][j];
    }
  }
}

/// Group g computes rows [g * rows_per_group, (g + 1) * rows_per_group); block b writes row b of
/// params.partial.
template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    backward_kernel(const __grid_constant__ BackwardParams params, int64_t rows_per_group) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  static __shared__ typename Config::Group::Storage storage;
  extern __shared__ float4 shared[];
  typename Config::Group group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const auto* x = static_cast<const Element*>(params.x);
  const auto* dy = static_cast<const Element*>(params.dy);
  const auto* means = static_cast<const float*>(params.mean);
  const auto* rstds = static_cast<const float*>(params.rstd);
  const float inverse_cols = 1.0f / static_cast<float>(params.cols);

  int64_t row = group.index() * rows_per_group;
  const int64_t end = row + rows_per_group < params.rows ? row + rows_per_group : params.rows;
  constexpr int kQuadBytes = sizeof(float4);
  float4* sums_at = shared + Config::WeightsOfRow::shared_bytes(group.size()) / kQuadBytes;
  const int sums_each = Config::kSums == Sums::kShared ? Tile::kElements / 4 * group.size() : 0;
  float4* next_x_at = sums_at + 2 * sums_each;
  float4* next_dy_at = next_x_at + Config::NextX::shared_bytes(group.size()) / kQuadBytes;
  typename Config::NextX next_x(tile, next_x_at, group.rank(), group.size());
  typename Config::NextDy next_dy(tile, next_dy_at, group.rank(), group.size());
  float next_mean = 0.0f, next_rstd = 0.0f;
  auto prefetch = [&](int64_t r) {
    if (r >= end) return;
    next_x.request(x + r * params.x_row_stride);
    next_dy.request(dy + r * params.dy_row_stride);
    next_mean = __ldg(means + r);
    next_rstd = __ldg(rstds + r);
  };
  prefetch(row);
  typename Config::WeightsOfRow weights(tile, static_cast<const Element*>(params.weight),
                                        static_cast<const Element*>(params.bias), group, shared);
  ColumnSums<Tile, Config::kSums> dweight(sums_at, group.rank(), group.size());
  ColumnSums<Tile, Config::kSums> dbias(sums_at + sums_each, group.rank(), group.size());
  __syncthreads();  // the weights in shared memory

  for (; row < end; ++row) {
    typename Tile::Floats h, dh;
    next_x.take(h);
    next_dy.take(dh);
    const float mean = next_mean, rstd = next_rstd;
    prefetch(row + 1);

    weights.next_row();
    float sums[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      float w[Tile::kVecSize], b[Tile::kVecSize];
      weights.get(i, w, b);
      float dz[Tile::kVecSize];
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        // Beyond the row's end dY is zero, and so is all that follows from it.
        h[i][j] = (h[i][j] - mean) * rstd;
        dz[j] = dh[i][j] * cuda::gelu_derivative<Element, Config::kForm>(fmaf(h[i][j], w[j], b[j]));
        dh[i][j] = dz[j] * w[j];
        sums[0] += dh[i][j];
        sums[1] = fmaf(dh[i][j], h[i][j], sums[1]);
      }
#pragma unroll
      for (int q = 0; q < Tile::kVecSize; q += 4) {
        dweight.add(i, q / 4, dz[q] * h[i][q], dz[q + 1] * h[i][q + 1], dz[q + 2] * h[i][q + 2],
                    dz[q + 3] * h[i][q + 3]);
        dbias.add(i, q / 4, dz[q], dz[q + 1], dz[q + 2], dz[q + 3]);
      }
    }
    group.sum(sums);
    const float shift = -sums[0] * inverse_cols, slope = -sums[1] * inverse_cols;
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) dh[i][j] = rstd * (fmaf(h[i][j], slope, dh[i][j]) + shift);
    }
    tile.store(static_cast<Element*>(params.dx) + row * params.cols, dh);
  }

  float* partial = static_cast<float*>(params.partial) + blockIdx.x * 2 * params.cols;
  typename Tile::Floats sums;
  dweight.read(sums);
  store_sums<Config>(tile, sums, partial);
  dbias.read(sums);
  store_sums<Config>(tile, sums, partial + params.cols);
}

/// Adds the blocks' sums: column by column, always in the same order.
/// Mapping: a block of 32 x 32 threads for 32 columns; warp w adds rows w, w + 32, ..., then the 32 warps'
/// sums are added. Bytes: partial_rows * 8 d, from L2.
template <class Element>
__global__ void __launch_bounds__(1024)
    add_partials_kernel(const float* __restrict__ partial, int64_t partial_rows, int64_t cols,
                        Element* dweight, Element* dbias) {
  static __shared__ float sums[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t width = 2 * cols;
  const int64_t column = blockIdx.x * int64_t{32} + lane;
  float sum = 0.0f;
  if (column < width) {
#pragma unroll 8
    for (int64_t row = warp; row < partial_rows; row += 32) sum += partial[row * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < 32; ++w) total += sums[w][lane];
  if (column < cols) {
    dweight[column] = cuda::from_float<Element>(total);
  } else {
    dbias[column - cols] = cuda::from_float<Element>(total);
  }
}

}  // namespace plab::ops::layer_norm_gelu
