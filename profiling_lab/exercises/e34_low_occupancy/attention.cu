// SPDX-License-Identifier: Apache-2.0
// Attention of one new token with a cache, grouped queries: four query heads share the keys and values of a row.
//
// q and out are (rows, 4, 64), keys and values (rows, count, 64), in float32: out = softmax(q K^T / 8) V.

#include <cuda_runtime.h>

constexpr int kDim = 64;
constexpr int kQueries = 4;
constexpr int kThreads = 256;
constexpr int kLanes = kDim / 4;            // threads that read one key or value, 16 bytes each
constexpr int kGroups = kThreads / kLanes;  // keys that a block reads at the same time

__device__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

__device__ void add(float4* sum, float weight, float4 value) {
  sum->x += weight * value.x;
  sum->y += weight * value.y;
  sum->z += weight * value.z;
  sum->w += weight * value.w;
}

// Sums over the 16 lanes that share a key.
__device__ float over_lanes(float value) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffff, value, step);
  }
  return value;
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

// A block is a row: scores of all its keys, their softmax, then the weighted sum of the values.
__global__ void attend_kernel(const float4* q, const float4* keys, const float4* values, float4* out,
                              int count) {
  extern __shared__ float4 dynamic[];
  float4* part = dynamic;                              // kThreads
  float* reduced = reinterpret_cast<float*>(dynamic);  // kThreads, at another time
  float4* scores = dynamic + kThreads;                 // count: four numbers for each key
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const size_t first = static_cast<size_t>(blockIdx.x) * count * kLanes;

  float4 query[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    query[i] = q[(blockIdx.x * kQueries + i) * kLanes + lane];
  }
  for (int base = 0; base < count; base += kGroups) {
    const int key = base + group;
    const float4 k = keys[first + static_cast<size_t>(min(key, count - 1)) * kLanes + lane];
    const float4 score =
        make_float4(over_lanes(dot(query[0], k)) * 0.125f, over_lanes(dot(query[1], k)) * 0.125f,
                    over_lanes(dot(query[2], k)) * 0.125f, over_lanes(dot(query[3], k)) * 0.125f);
    if (lane == 0 && key < count) {
      scores[key] = score;
    }
  }
  __syncthreads();

  float* numbers = reinterpret_cast<float*>(scores);
  float sums[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    float largest = -INFINITY, sum = 0.0f;
    for (int key = threadIdx.x; key < count; key += kThreads) {
      largest = fmaxf(largest, numbers[key * kQueries + i]);
    }
    largest = over_block<true>(largest, reduced);
    for (int key = threadIdx.x; key < count; key += kThreads) {
      const float weight = expf(numbers[key * kQueries + i] - largest);
      numbers[key * kQueries + i] = weight;
      sum += weight;
    }
    sums[i] = over_block<false>(sum, reduced);
  }

  float4 mixed[kQueries] = {};
  for (int key = group; key < count; key += kGroups) {
    const float4 v = values[first + static_cast<size_t>(key) * kLanes + lane];
    const float4 weight = scores[key];
    add(&mixed[0], weight.x, v);
    add(&mixed[1], weight.y, v);
    add(&mixed[2], weight.z, v);
    add(&mixed[3], weight.w, v);
  }
  for (int i = 0; i < kQueries; ++i) {
    part[threadIdx.x] = mixed[i];
    __syncthreads();
    if (threadIdx.x < kLanes) {
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int other = threadIdx.x; other < kThreads; other += kLanes) {
        add(&total, 1.0f / sums[i], part[other]);
      }
      out[(blockIdx.x * kQueries + i) * kLanes + threadIdx.x] = total;
    }
    __syncthreads();
  }
}

// Called by run.py and by the grader. Returns a cudaError_t.
extern "C" int attend(const float* q, const float* keys, const float* values, float* out, float* work,
                      int rows, int count) {
  const size_t bytes = (kThreads + static_cast<size_t>(count)) * sizeof(float4);
  const cudaError_t error = cudaFuncSetAttribute(attend_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 static_cast<int>(bytes));
  if (error != cudaSuccess) {
    return error;
  }
  attend_kernel<<<rows, kThreads, bytes>>>(
      reinterpret_cast<const float4*>(q), reinterpret_cast<const float4*>(keys),
      reinterpret_cast<const float4*>(values), reinterpret_cast<float4*>(out), count);
  return cudaGetLastError();
}
