// SPDX-License-Identifier: Apache-2.0
// heavy_layer_slow: Y = tanh(X W1 W2 W3 + b) in one kernel that is correct and slow on purpose. In the exercise
// python-backtrace it is the kernel to find with a profiler. Every defect is real, common, and marked. README.md
// says what each one costs.
//
// Mapping   one block per row; the threads of a block share out the d columns of each of the three products.
// Bytes     what it must move: (2 rows d + 3 d^2 + d) elements. What it moves through L2: 3 d^2 elements per
//           row.
// Flops     6 rows d^2 + 2 rows d, on the ordinary fp32 units.
// Roof      at rows 4096, d 512, fp32: 6.4 GFLOP over 19 MB, so compute: 0.1 ms at 67 TFLOP/s. This kernel
//           needs some hundred times that, waiting for one load at a time.
// Contract  contiguous, rows > 0, 0 < d <= kSlowMaxWidth; checked in heavy_layer.cpp.
#include "cuda/launch.h"
#include "cuda/vec.cuh"
#include "ops/device_types.cuh"
#include "ops/heavy_layer/heavy_layer.h"

namespace plab::ops {

namespace {

// The two parameters. The time is proportional to 1 / kSlowThreads, because the kernel is bound by latency.
// kColumnStride is the distance between the columns of neighbouring threads: 1 would be coalesced, 32 touches 16
// cache lines per load at d = 512.
constexpr int kSlowThreads = 128;
constexpr int kColumnStride = 32;

// Sums are computed in spans, so rounding errors do not accumulate over d: the kernel is slow, not wrong.
constexpr int kSpan = 32;

template <class Element>
__device__ void row_times_matrix(const float* in, const Element* __restrict__ w, float* out, int d) {
  const int bands = (d + kColumnStride - 1) / kColumnStride;
  for (int i = static_cast<int>(threadIdx.x); i < bands * kColumnStride; i += kSlowThreads) {
    // DEFECT(2): uncoalesced. Neighbouring threads read columns kColumnStride apart, so one load of a warp
    // touches 16 cache lines where one would do.
    const int column = (i % bands) * kColumnStride + i / bands;
    if (column >= d) continue;
    // DEFECT(3): one accumulator in a loop that is not unrolled. The next load waits for the last sum, so
    // every thread has one load in flight and the multiply-add units idle through the latency of L2.
    float sum = 0.0f;
    for (int first = 0; first < d; first += kSpan) {
      const int last = min(first + kSpan, d);
      float part = 0.0f;
#pragma unroll 1
      for (int k = first; k < last; ++k) {
        part = fmaf(in[k], cuda::to_float(w[static_cast<int64_t>(k) * d + column]), part);
      }
      sum += part;
    }
    out[column] = sum;
  }
}

template <class Element>
__global__ void __launch_bounds__(kSlowThreads) heavy_layer_slow_kernel(const HeavyLayerSlowParams p) {
  // DEFECT(4): shared memory for the widest row there may ever be, whatever d is. 48 KB a block let only four
  // blocks of kSlowThreads threads onto an SM, so few warps are there to hide the latency of DEFECT(3).
  __shared__ float buffer[2][kSlowMaxWidth];
  // DEFECT(1): one row per block. All three matrices are read again for every row: no tile of rows shares
  // them.
  const int64_t row = blockIdx.x;
  const int d = static_cast<int>(p.d);
  const Element* x = static_cast<const Element*>(p.x) + row * d;
  const Element* b = static_cast<const Element*>(p.b);
  Element* y = static_cast<Element*>(p.y) + row * d;

  for (int i = static_cast<int>(threadIdx.x); i < d; i += kSlowThreads) buffer[0][i] = cuda::to_float(x[i]);
  __syncthreads();
  // DEFECT(5): scalar multiply-adds. The tensor cores, which are made for matrix multiplication, are not used
  // in any precision.
  row_times_matrix(buffer[0], static_cast<const Element*>(p.w1), buffer[1], d);
  __syncthreads();
  row_times_matrix(buffer[1], static_cast<const Element*>(p.w2), buffer[0], d);
  __syncthreads();
  row_times_matrix(buffer[0], static_cast<const Element*>(p.w3), buffer[1], d);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < d; i += kSlowThreads) {
    y[i] = cuda::from_float<Element>(tanhf(buffer[1][i] + cuda::to_float(b[i])));
  }
}

}  // namespace

void launch_heavy_layer_slow(const HeavyLayerSlowParams& params, cudaStream_t stream) {
  dispatch_device(params.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    heavy_layer_slow_kernel<Element><<<static_cast<unsigned>(params.rows), kSlowThreads, 0, stream>>>(params);
    PLAB_CHECK_LAUNCH();
  });
}

}  // namespace plab::ops
