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

// A block is a part of a head: blockIdx.y says which.
__global__ void part_kernel(const float4* q, const float4* keys, const float4* values, float* scores,
                            State* states, int count, int length) {
  const int head = blockIdx.x, lane = threadIdx.x % kLanes, begin = blockIdx.y * length;
  const size_t first = static_cast<size_t>(head) * count;
  State state = over_keys(q[head * kLanes + lane], keys + first * kLanes, values + first * kLanes,
                          scores + first, begin, min(begin + length, count));
  state = over_groups(state);
  if (threadIdx.x < kLanes) {
    states[(head * gridDim.y + blockIdx.y) * kLanes + threadIdx.x] = state;
  }
}

// The parts of a head become one. A block is a head.
__global__ void combine_kernel(const State* states, float4* out, float* logsum, int parts) {
  const int head = blockIdx.x, lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  State state;
  for (int part = group; part < parts; part += kGroups) {
    State other = states[(head * parts + part) * kLanes + lane];
    const float top = fmaxf(state.largest, other.largest);
    state.rescale(top);
    other.rescale(top);
    state.sum += other.sum;
    add(&state.mixed, 1.0f, other.mixed);
  }
  state = over_groups(state);
  if (threadIdx.x < kLanes) {
    float4 mixed = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    add(&mixed, 1.0f / state.sum, state.mixed);
    out[head * kLanes + lane] = mixed;
    if (lane == 0) {
      logsum[head] = state.largest + logf(state.sum);
    }
  }
}

// entropy[head] = - sum over keys of p log p, where log p = score - logsum. A block adds one number to its head.
__global__ void entropy_kernel(const float* scores, const float* logsum, float* entropy, int count) {
  __shared__ float of_warp[kThreads / 32];
  const int head = blockIdx.y;
  float sum = 0.0f;
  for (int key = blockIdx.x * kThreads + threadIdx.x; key < count; key += gridDim.x * kThreads) {
    const float logp = scores[static_cast<size_t>(head) * count + key] - logsum[head];
    sum -= expf(logp) * logp;
  }
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, step);
  }
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      total += of_warp[warp];
    }
    atomicAdd(&entropy[head], total);
  }
}

// pages[page] = the largest score of its 64 keys. 16 threads are a page.
__global__ void pages_kernel(const float* scores, float* pages, int number) {
  const int thread = blockIdx.x * kThreads + threadIdx.x, page = thread / 16;
  const float4 four = reinterpret_cast<const float4*>(scores)[min(thread, number * 16 - 1)];
  float largest = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
  for (int step = 8; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
  }
  if (thread % 16 == 0 && page < number) {
    pages[page] = largest;
  }
}

// Called by run.py and by the grader. Returns a cudaError_t.
extern "C" int attend(const float* q, const float* keys, const float* values, float* out, float* entropy,
                      float* pages, float* work, int heads, int count) {
  constexpr int kParts = 32;  // of a head: each has 16 states of 8 floats, 4096 floats together
  float* states = work + static_cast<size_t>(heads) * count;
  float *scores = work, *logsum = work + static_cast<size_t>(heads) * (count + 4096);
  const int length = (count + kParts - 1) / kParts, parts = (count + length - 1) / length;
  cudaMemsetAsync(entropy, 0, heads * sizeof(float));
  part_kernel<<<dim3(heads, parts), kThreads>>>(
      reinterpret_cast<const float4*>(q), reinterpret_cast<const float4*>(keys),
      reinterpret_cast<const float4*>(values), scores, reinterpret_cast<State*>(states), count, length);
  combine_kernel<<<heads, kThreads>>>(reinterpret_cast<State*>(states), reinterpret_cast<float4*>(out),
                                      logsum, parts);
  const int blocks = (count + 8 * kThreads - 1) / (8 * kThreads);
  entropy_kernel<<<dim3(blocks, heads), kThreads>>>(scores, logsum, entropy, count);
  const int number = heads * (count / kPage);
  pages_kernel<<<(number * 16 + kThreads - 1) / kThreads, kThreads>>>(scores, pages, number);
  return cudaGetLastError();
}
