// SPDX-License-Identifier: Apache-2.0
// The kernels around heavy_layer's GEMMs.
//
// bias_tanh: Z <- tanh(Z + b).
// Mapping   a warp has 32 vectors of 16 bytes of a row, a thread kBatch rows at once.
// Bytes     2 rows d elements.        Flops  2 rows d, and a tanh each.        Roof  memory.
//
// tanh_backward: G = dY (1 - Y^2), or its transpose; db = sum of G over the rows.
// Mapping   pass 1: a block owns kChunkRows rows and 32 vectors of columns. Its warps take the rows in turns,
//           write G and add up their columns; then the block adds up its warps.
//           pass 2, if there are several chunks: a block adds up those of 32 columns. No atomics and a fixed
//           order, so equal inputs give equal bits.
// Bytes     3 rows d elements + 8 d rows / kChunkRows.   Flops  4 rows d.      Roof  memory.
// Contract  contiguous, d > 0; checked in heavy_layer.cpp. A vector is one element where d or an address does
//           not suit 16 bytes.
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/vec.cuh"
#include "ops/device_types.cuh"
#include "ops/heavy_layer/heavy_layer.h"
#include "ops/heavy_layer/tanh.cuh"

namespace plab::ops {

namespace {

constexpr int kThreads = 256, kLanes = 32, kLines = kThreads / kLanes;
constexpr int kBackwardThreads = 512, kBackwardLines = kBackwardThreads / kLanes;
constexpr int kBatch = 4;  // rows that a thread has under way at once

// kSize neighbouring elements: a vector of 16 bytes, or one element.
template <class Element, int kSize>
__device__ __forceinline__ void load(const Element* address, float (&v)[kSize]) {
  if constexpr (kSize == 1)
    v[0] = cuda::to_float(*address);
  else
    cuda::unpack(cuda::load_streaming(address), v);
}

// The same for memory that this kernel also writes: the read-only path must not be used for it.
template <class Element, int kSize>
__device__ __forceinline__ void load_in_place(const Element* address, float (&v)[kSize]) {
  if constexpr (kSize == 1)
    v[0] = cuda::to_float(*address);
  else
    cuda::unpack(cuda::Vec<Element>{*reinterpret_cast<const uint4*>(address)}, v);
}

template <class Element, int kSize>
__device__ __forceinline__ void store(Element* address, const float (&v)[kSize]) {
  if constexpr (kSize == 1)
    *address = cuda::from_float<Element>(v[0]);
  else
    cuda::store_streaming(address, cuda::pack<Element>(v));
}

// The grid in its order of rows: which columns and which rows a block has.
struct Block {
  int64_t columns, rows;
  __device__ explicit Block(int64_t column_blocks)
      : columns(blockIdx.x % column_blocks), rows(blockIdx.x / column_blocks) {}
};

template <class Element, int kSize>
__global__ void __launch_bounds__(kThreads)
    bias_tanh_kernel(Element* z, const Element* b, int64_t rows, int64_t d, int64_t column_blocks) {
  const Block block(column_blocks);
  const int64_t column = (block.columns * kLanes + threadIdx.x % kLanes) * kSize;
  if (column >= d) return;
  // The last rows first: the previous GEMM has just written them, so they are still in L2.
  const int64_t batch = gridDim.x / column_blocks - 1 - block.rows;
  const int64_t first = batch * kLines * kBatch + threadIdx.x / kLanes;
  float bias[kSize], values[kBatch][kSize];
  load<Element, kSize>(b + column, bias);
#pragma unroll
  for (int i = 0; i < kBatch; ++i)
    if (first + i * kLines < rows)
      load_in_place<Element, kSize>(z + (first + i * kLines) * d + column, values[i]);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (first + i * kLines >= rows) break;
#pragma unroll
    for (int k = 0; k < kSize; ++k) values[i][k] = fast_tanh<Element>(values[i][k] + bias[k]);
    store<Element, kSize>(z + (first + i * kLines) * d + column, values[i]);
  }
}

template <class Element, int kSize, bool kTransposes>
__global__ void __launch_bounds__(kBackwardThreads)
    tanh_backward_kernel(const TanhBackwardParams p, int64_t column_blocks) {
  constexpr int kColumns = kLanes * kSize;
  __shared__ float sums[kBackwardLines][kColumns];
  __shared__ Element tile[kTransposes ? kChunkRows : 1][kColumns + 1];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, line = static_cast<int>(threadIdx.x) / kLanes;
  const Block block(column_blocks);
  const int64_t first_column = block.columns * kColumns, column = first_column + lane * kSize;
  const int64_t first = block.rows * kChunkRows, last = min(first + kChunkRows, p.rows);
  const auto* dy = static_cast<const Element*>(p.dy);
  const auto* y = static_cast<const Element*>(p.y);
  auto* g = static_cast<Element*>(p.g);
  float sum[kSize] = {};
  if (column < p.d) {
#pragma unroll 4
    for (int64_t row = first + line; row < last; row += kBackwardLines) {
      const int64_t at = row * p.d + column;
      float slope[kSize], value[kSize];
      load<Element, kSize>(dy + at, slope);
      load<Element, kSize>(y + at, value);
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        slope[k] *= 1.0f - value[k] * value[k];
        sum[k] += slope[k];
      }
      if constexpr (kTransposes) {
#pragma unroll
        for (int k = 0; k < kSize; ++k)
          tile[row - first][lane * kSize + k] = cuda::from_float<Element>(slope[k]);
      } else {
        store<Element, kSize>(g + at, slope);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kSize; ++k) sums[line][lane * kSize + k] = sum[k];
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < kColumns && first_column + i < p.d) {
    float total = 0.0f;
#pragma unroll
    for (int l = 0; l < kBackwardLines; ++l) total += sums[l][i];
    if (p.partial == nullptr)
      static_cast<Element*>(p.db)[first_column + i] = cuda::from_float<Element>(total);
    else
      p.partial[block.rows * p.d + first_column + i] = total;
  }
  if constexpr (kTransposes) {
    for (int c = line; c < min(static_cast<int64_t>(kColumns), p.d - first_column); c += kBackwardLines)
      for (int r = lane; r < last - first; r += kLanes)
        g[(first_column + c) * p.rows + first + r] = tile[r][c];
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    sum_chunks_kernel(const float* partial, Element* db, int64_t chunks, int64_t d) {
  __shared__ float sums[kLines][kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, line = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kLanes + lane;
  float sum = 0.0f;
  if (column < d) {
#pragma unroll 8
    for (int64_t chunk = line; chunk < chunks; chunk += kLines) sum += partial[chunk * d + column];
  }
  sums[line][lane] = sum;
  __syncthreads();
  if (line > 0 || column >= d) return;
#pragma unroll
  for (int l = 1; l < kLines; ++l) sum += sums[l][lane];
  db[column] = cuda::from_float<Element>(sum);
}

// Calls back with the element type and the vector's size.
template <class Function>
void dispatch_vectors(ElementType type, int64_t d, std::initializer_list<const void*> addresses,
                      Function&& function) {
  dispatch_device(type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    bool vectors = d % cuda::kVecSize<Element> == 0;
    for (const void* address : addresses)
      vectors = vectors && reinterpret_cast<std::uintptr_t>(address) % cuda::kVecBytes == 0;
    if (vectors)
      function(tag, std::integral_constant<int, cuda::kVecSize<Element>>{});
    else
      function(tag, std::integral_constant<int, 1>{});
  });
}

}  // namespace

void launch_bias_tanh(const BiasTanhParams& params, cudaStream_t stream) {
  dispatch_vectors(params.type, params.d, {params.z, params.b}, [&](auto tag, auto size) {
    using Element = typename decltype(tag)::type;
    const int64_t columns = cuda::ceil_div<int64_t>(params.d, kLanes * size);
    const int64_t blocks = columns * cuda::ceil_div<int64_t>(params.rows, kLines * kBatch);
    bias_tanh_kernel<Element, size()><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
        static_cast<Element*>(params.z), static_cast<const Element*>(params.b), params.rows, params.d,
        columns);
    PLAB_CHECK_LAUNCH();
  });
}

void launch_tanh_backward(const TanhBackwardParams& params, cudaStream_t stream) {
  const int64_t chunks = tanh_backward_chunks(params.rows);
  if (chunks == 0) return;
  dispatch_vectors(params.type, params.d, {params.dy, params.y, params.g}, [&](auto tag, auto size) {
    using Element = typename decltype(tag)::type;
    const int64_t columns = cuda::ceil_div<int64_t>(params.d, kLanes * size);
    const auto kernel = [&] {
      if constexpr (sizeof(Element) == sizeof(float)) {
        if (params.g_is_transposed) return tanh_backward_kernel<Element, size(), true>;
      }
      return tanh_backward_kernel<Element, size(), false>;
    }();
    kernel<<<static_cast<unsigned>(chunks * columns), kBackwardThreads, 0, stream>>>(params, columns);
    PLAB_CHECK_LAUNCH();
  });
}

void launch_sum_chunks(const TanhBackwardParams& params, cudaStream_t stream) {
  dispatch_device(params.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    const auto blocks = static_cast<unsigned>(cuda::ceil_div<int64_t>(params.d, kLanes));
    sum_chunks_kernel<Element><<<blocks, kThreads, 0, stream>>>(
        params.partial, static_cast<Element*>(params.db), tanh_backward_chunks(params.rows), params.d);
    PLAB_CHECK_LAUNCH();
  });
}

}  // namespace plab::ops
