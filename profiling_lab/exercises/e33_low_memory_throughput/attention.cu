// SPDX-License-Identifier: Apache-2.0
// Attention of one new token with a cache of keys and values: softmax(q K^T / sqrt(dim)) V, in float32.
//
// q and out are (rows, 64), keys and values (rows, count, 64): a row is one head of one sequence. work holds
// rows x count floats.

#include <cuda_runtime.h>

constexpr int kDim = 64;
constexpr int kThreads = 256;

// work[row][key] = q[row] . keys[row][key] / 8
__global__ void scores_kernel(const float* q, const float* keys, float* work, int count) {
  __shared__ float query[kDim];
  const int row = blockIdx.y;
  if (threadIdx.x < kDim) {
    query[threadIdx.x] = q[row * kDim + threadIdx.x] * 0.125f;
  }
  __syncthreads();
  const int key = blockIdx.x * kThreads + threadIdx.x;
  if (key < count) {
    const float* own = keys + (static_cast<size_t>(row) * count + key) * kDim;
    float sum = 0.0f;
    for (int i = 0; i < kDim; ++i) {
      sum += query[i] * own[i];
    }
    work[static_cast<size_t>(row) * count + key] = sum;
  }
}

// The largest or the sum of one number of each thread, in every thread.
template <bool kLargest>
__device__ float over_block(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float other = shared[threadIdx.x + step];
      shared[threadIdx.x] = kLargest ? fmaxf(shared[threadIdx.x], other) : shared[threadIdx.x] + other;
    }
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}

// Each row of work becomes its softmax.
__global__ void softmax_kernel(float* work, int count) {
  __shared__ float shared[kThreads];
  float* row = work + static_cast<size_t>(blockIdx.x) * count;
  float largest = -INFINITY;
  for (int key = threadIdx.x; key < count; key += kThreads) {
    largest = fmaxf(largest, row[key]);
  }
  largest = over_block<true>(largest, shared);
  float sum = 0.0f;
  for (int key = threadIdx.x; key < count; key += kThreads) {
    row[key] = expf(row[key] - largest);
    sum += row[key];
  }
  const float scale = 1.0f / over_block<false>(sum, shared);
  for (int key = threadIdx.x; key < count; key += kThreads) {
    row[key] *= scale;
  }
}

// out[row] = sum over keys of work[row][key] * values[row][key]
__global__ void mix_kernel(const float* work, const float* values, float* out, int count) {
  __shared__ float4 part[kThreads];
  constexpr int kColumns = kDim / 4;
  const int column = threadIdx.x % kColumns, first = threadIdx.x / kColumns;
  const float* weight = work + static_cast<size_t>(blockIdx.x) * count;
  const float4* value =
      reinterpret_cast<const float4*>(values) + static_cast<size_t>(blockIdx.x) * count * kColumns;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int key = first; key < count; key += kThreads / kColumns) {
    const float p = weight[key];
    const float4 v = value[static_cast<size_t>(key) * kColumns + column];
    sum.x += p * v.x;
    sum.y += p * v.y;
    sum.z += p * v.z;
    sum.w += p * v.w;
  }
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kColumns) {
    for (int other = threadIdx.x + kColumns; other < kThreads; other += kColumns) {
      sum.x += part[other].x;
      sum.y += part[other].y;
      sum.z += part[other].z;
      sum.w += part[other].w;
    }
    reinterpret_cast<float4*>(out)[blockIdx.x * kColumns + threadIdx.x] = sum;
  }
}

// Called by run.py and by the grader. Returns a cudaError_t.
extern "C" int attend(const float* q, const float* keys, const float* values, float* out, float* work,
                      int rows, int count) {
  const dim3 grid((count + kThreads - 1) / kThreads, rows);
  scores_kernel<<<grid, kThreads>>>(q, keys, work, count);
  softmax_kernel<<<rows, kThreads>>>(work, count);
  mix_kernel<<<rows, kThreads>>>(work, values, out, count);
  return cudaGetLastError();
}
