// SPDX-License-Identifier: Apache-2.0
// Attention of one new token with a long cache, and two statistics that the cache's owner wants: the entropy of
// each head's weights, and the largest score of each page of 64 keys.
//
// q and out are (heads, 64), keys and values (heads, count, 64), entropy (heads), pages (heads, count / 64), in
// float32. count is a multiple of 64. work holds heads x (count + 8192) floats.

#include <cuda_runtime.h>

constexpr int kDim = 64;
constexpr int kThreads = 256;
constexpr int kLanes = kDim / 4;            // threads that read one key or value, 16 bytes each
constexpr int kGroups = kThreads / kLanes;  // keys that a block reads at the same time
constexpr int kPage = 64;

__device__ void add(float4* sum, float weight, float4 value) {
  sum->x += weight * value.x;
  sum->y += weight * value.y;
  sum->z += weight * value.z;
  sum->w += weight * value.w;
}

// What is known so far: the largest score, and relative to it the sum of weights and the mixed values.
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

// The state of keys [begin, end) of a head, by one group of 16 threads. Their scores go to `scores`.
__device__ State over_keys(float4 query, const float4* keys, const float4* values, float* scores, int begin,
                           int end) {
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  State state;
  for (int base = begin; base < end; base += kGroups) {
    const int key = base + group;
    const size_t at = static_cast<size_t>(min(key, end - 1)) * kLanes + lane;
    const float4 k = keys[at], v = values[at];
    float score = query.x * k.x + query.y * k.y + query.z * k.z + query.w * k.w;
    for (int step = kLanes / 2; step > 0; step /= 2) {
      score += __shfl_xor_sync(0xffffffff, score, step);
    }
    score *= 0.125f;
    if (key < end) {
      if (score > state.largest) {
        state.rescale(score);
      }
      const float weight = expf(score - state.largest);
      state.sum += weight;
      add(&state.mixed, weight, v);
      if (lane == 0) {
        scores[key] = score;
      }
    }
  }
  return state;
}

// The states of all groups become one, in the first 16 threads.
__device__ State over_groups(State state) {
  __shared__ State all[kThreads];
  all[threadIdx.x] = state;
  __syncthreads();
  State total;
  if (threadIdx.x < kLanes) {
    for (int group = 0; group < kGroups; ++group) {
      State other = all[group * kLanes + threadIdx.x];
      const float top = fmaxf(total.largest, other.largest);
      if (top > -INFINITY) {
        total.rescale(top);
        other.rescale(top);
        total.sum += other.sum;
        add(&total.mixed, 1.0f, other.mixed);
      }
    }
  }
  __syncthreads();
  return total;
}

// A block is a head.
__global__ void attend_kernel(const float4* q, const float4* keys, const float4* values, float4* out,
                              float* scores, float* logsum, int count) {
  const int head = blockIdx.x, lane = threadIdx.x % kLanes;
  const size_t first = static_cast<size_t>(head) * count;
  State state = over_keys(q[head * kLanes + lane], keys + first * kLanes, values + first * kLanes,
                          scores + first, 0, count);
  state = over_groups(state);
  if (threadIdx.x < kLanes) {
    float4 mixed = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    add(&mixed, 1.0f / state.sum, state.mixed);
    out[head * kLanes + threadIdx.x] = mixed;
    if (threadIdx.x == 0) {
      logsum[head] = state.largest + logf(state.sum);
    }
  }
}

// entropy[head] = - sum over keys of p log p, where log p = score - logsum. A thread is a key.
__global__ void entropy_kernel(const float* scores, const float* logsum, float* entropy, int count) {
  const int head = blockIdx.y, key = blockIdx.x * kThreads + threadIdx.x;
  if (key < count) {
    const float logp = scores[static_cast<size_t>(head) * count + key] - logsum[head];
    atomicAdd(&entropy[head], -expf(logp) * logp);
  }
}

// pages[page] = the largest score of its 64 keys, over all pages of all heads. A thread is a page.
__global__ void pages_kernel(const float* scores, float* pages, int number) {
  const int page = blockIdx.x * kThreads + threadIdx.x;
  if (page < number) {
    float* of_quarter = static_cast<float*>(malloc(4 * sizeof(float)));
    const float4* own = reinterpret_cast<const float4*>(scores + static_cast<size_t>(page) * kPage);
    for (int quarter = 0; quarter < 4; ++quarter) {
      of_quarter[quarter] = -INFINITY;
      for (int i = 0; i < kPage / 16; ++i) {
        const float4 four = own[quarter * (kPage / 16) + i];
        of_quarter[quarter] = fmaxf(of_quarter[quarter], fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)));
      }
    }
    pages[page] = fmaxf(fmaxf(of_quarter[0], of_quarter[1]), fmaxf(of_quarter[2], of_quarter[3]));
    free(of_quarter);
  }
}

// Called by run.py and by the grader. Returns a cudaError_t.
extern "C" int attend(const float* q, const float* keys, const float* values, float* out, float* entropy,
                      float* pages, float* work, int heads, int count) {
  float *scores = work, *logsum = work + static_cast<size_t>(heads) * (count + 4096);
  cudaMemsetAsync(entropy, 0, heads * sizeof(float));
  attend_kernel<<<heads, kThreads>>>(
      reinterpret_cast<const float4*>(q), reinterpret_cast<const float4*>(keys),
      reinterpret_cast<const float4*>(values), reinterpret_cast<float4*>(out), scores, logsum, count);
  const dim3 grid((count + kThreads - 1) / kThreads, heads);
  entropy_kernel<<<grid, kThreads>>>(scores, logsum, entropy, count);
  const int number = heads * (count / kPage);
  pages_kernel<<<(number + kThreads - 1) / kThreads, kThreads>>>(scores, pages, number);
  return cudaGetLastError();
}
