// SPDX-License-Identifier: Apache-2.0
// The two kernels around heavy_layer's matrix products (which are torch's own, see heavy_layer.cpp).
//
// bias_tanh: Z <- tanh(Z + b).
// Mapping   a grid-stride loop, 16 bytes per thread and step where d and the addresses allow.
// Bytes     2 rows d elements.        Flops  2 rows d, and a tanh each.        Roof  memory.
//
// tanh_backward: G = dY (1 - Y^2); db = sum of G over the rows.
// Mapping   pass 1: a block owns kChunkRows rows and kThreads columns, a thread one column; it writes G and
// its column's sum.
//           pass 2: a thread adds up its column's chunks, in order. No atomics, so equal inputs give equal
//           bits.
// Bytes     3 rows d elements + 8 d rows / kChunkRows.   Flops  4 rows d.      Roof  memory.
// Contract  contiguous, d > 0; checked in heavy_layer.cpp.
#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/vec.cuh"
#include "ops/device_types.cuh"
#include "ops/heavy_layer/heavy_layer.h"

namespace plab::ops {

namespace {

constexpr int kThreads = 256;

template <class Element>
__global__ void __launch_bounds__(kThreads)
    bias_tanh_vector_kernel(Element* z, const Element* b, int64_t vectors, int64_t d) {
  constexpr int kSize = cuda::kVecSize<Element>;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += step) {
    float values[kSize], bias[kSize];
    cuda::unpack(cuda::load_streaming(z + i * kSize), values);
    cuda::unpack(cuda::load_cached(b + i * kSize % d), bias);
#pragma unroll
    for (int k = 0; k < kSize; ++k) values[k] = tanhf(values[k] + bias[k]);
    cuda::store_streaming(z + i * kSize, cuda::pack<Element>(values));
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    bias_tanh_kernel(Element* z, const Element* b, int64_t elements, int64_t d) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    z[i] = cuda::from_float<Element>(tanhf(cuda::to_float(z[i]) + cuda::to_float(b[i % d])));
  }
}

template <class Element>
__global__ void __launch_bounds__(kThreads) tanh_backward_kernel(const TanhBackwardParams p) {
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (column >= p.d) return;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kChunkRows;
  const int64_t last = min(first + kChunkRows, p.rows);
  const Element* dy = static_cast<const Element*>(p.dy);
  const Element* y = static_cast<const Element*>(p.y);
  Element* g = static_cast<Element*>(p.g);
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * p.d + column;
    const float value = cuda::to_float(y[at]);
    const float slope = cuda::to_float(dy[at]) * (1.0f - value * value);
    g[at] = cuda::from_float<Element>(slope);
    sum += slope;
  }
  p.partial[blockIdx.x * p.d + column] = sum;
}

template <class Element>
__global__ void __launch_bounds__(kThreads)
    sum_chunks_kernel(const float* partial, Element* db, int64_t chunks, int64_t d) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= d) return;
  float sum = 0.0f;
#pragma unroll 8
  for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk * d + column];
  db[column] = cuda::from_float<Element>(sum);
}

bool aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % cuda::kVecBytes == 0; }

unsigned grid_stride_blocks(int64_t items) {
  constexpr int kBlocksPerMultiprocessor = 8;
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) * kBlocksPerMultiprocessor;
  return static_cast<unsigned>(std::min(cuda::ceil_div<int64_t>(items, kThreads), resident));
}

}  // namespace

void launch_bias_tanh(const BiasTanhParams& params, cudaStream_t stream) {
  dispatch_device(params.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    auto* z = static_cast<Element*>(params.z);
    const auto* b = static_cast<const Element*>(params.b);
    const int64_t elements = params.rows * params.d;
    if (params.d % cuda::kVecSize<Element> == 0 && aligned(z) && aligned(b)) {
      const int64_t vectors = elements / cuda::kVecSize<Element>;
      bias_tanh_vector_kernel<Element>
          <<<grid_stride_blocks(vectors), kThreads, 0, stream>>>(z, b, vectors, params.d);
      PLAB_CHECK_LAUNCH();
    } else {
      bias_tanh_kernel<Element>
          <<<grid_stride_blocks(elements), kThreads, 0, stream>>>(z, b, elements, params.d);
      PLAB_CHECK_LAUNCH();
    }
  });
}

void launch_tanh_backward(const TanhBackwardParams& params, cudaStream_t stream) {
  dispatch_device(params.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    const int64_t chunks = tanh_backward_chunks(params.rows);
    const auto columns = static_cast<unsigned>(cuda::ceil_div<int64_t>(params.d, kThreads));
    if (chunks > 0) {
      const dim3 grid(static_cast<unsigned>(chunks), columns);
      tanh_backward_kernel<Element><<<grid, kThreads, 0, stream>>>(params);
      PLAB_CHECK_LAUNCH();
    }
    auto* db = static_cast<Element*>(params.db);
    sum_chunks_kernel<Element><<<columns, kThreads, 0, stream>>>(params.partial, db, chunks, params.d);
    PLAB_CHECK_LAUNCH();
  });
}

}  // namespace plab::ops
