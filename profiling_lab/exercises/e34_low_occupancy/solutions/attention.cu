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

// What is known of one query so far: the largest score, and relative to it the sum of weights and the mixed values.
struct State {
  float largest = -INFINITY;
  float sum = 0.0f;
  float4 mixed = {0.0f, 0.0f, 0.0f, 0.0f};

  __device__ void rescale(float to) {
    const float shrink = largest == -INFINITY ? 0.0f : expf(largest - to);
    largest = to;
    sum *= shrink;
    mixed = make_float4(mixed.x * shrink, mixed.y * shrink, mixed.z * shrink, mixed.w * shrink);
  }
};

// A block is a row. Each group of 16 threads takes every 16th pair of keys and keeps a running softmax of them:
// no scores are kept, so a block needs 5 KB of shared memory for any number of keys.
__global__ void __launch_bounds__(kThreads, 4)
    attend_kernel(const float4* q, const float4* keys, const float4* values, float4* out, int count) {
  __shared__ float4 part[kThreads];
  __shared__ float largest[kGroups];
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const size_t first = static_cast<size_t>(blockIdx.x) * count * kLanes;

  float4 query[kQueries];
  State state[kQueries];
  for (int i = 0; i < kQueries; ++i) {
    query[i] = q[(blockIdx.x * kQueries + i) * kLanes + lane];
  }
  for (int base = 0; base < count; base += 2 * kGroups) {
    const int key = base + group, next = key + kGroups;
    const size_t at = first + static_cast<size_t>(min(key, count - 1)) * kLanes + lane;
    const size_t after = first + static_cast<size_t>(min(next, count - 1)) * kLanes + lane;
    const float4 k0 = keys[at], k1 = keys[after], v0 = values[at], v1 = values[after];
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      const float s0 = over_lanes(dot(query[i], k0)) * 0.125f, s1 = over_lanes(dot(query[i], k1)) * 0.125f;
      if (key < count) {
        const float top = next < count ? fmaxf(s0, s1) : s0;
        if (top > state[i].largest) {
          state[i].rescale(top);
        }
        const float w0 = expf(s0 - state[i].largest), w1 = next < count ? expf(s1 - state[i].largest) : 0.0f;
        state[i].sum += w0 + w1;
        add(&state[i].mixed, w0, v0);
        add(&state[i].mixed, w1, v1);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    if (lane == 0) {
      largest[group] = state[i].largest;
    }
    __syncthreads();
    float top = -INFINITY;
    for (int other = 0; other < kGroups; ++other) {
      top = fmaxf(top, largest[other]);
    }
    state[i].rescale(top);
    part[threadIdx.x] = state[i].mixed;
    __syncthreads();
    if (lane == 0) {
      largest[group] = state[i].sum;
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {
      float sum = 0.0f;
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int other = 0; other < kGroups; ++other) {
        sum += largest[other];
        add(&total, 1.0f, part[other * kLanes + lane]);
      }
      const float scale = 1.0f / sum;
      out[(blockIdx.x * kQueries + i) * kLanes + lane] =
          make_float4(total.x * scale, total.y * scale, total.z * scale, total.w * scale);
    }
    __syncthreads();
  }
}

// Called by run.py and by the grader. Returns a cudaError_t.
extern "C" int attend(const float* q, const float* keys, const float* values, float* out, float* work,
                      int rows, int count) {
  attend_kernel<<<rows, kThreads>>>(reinterpret_cast<const float4*>(q), reinterpret_cast<const float4*>(keys),
                                    reinterpret_cast<const float4*>(values), reinterpret_cast<float4*>(out),
                                    count);
  return cudaGetLastError();
}
