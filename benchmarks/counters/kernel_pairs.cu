// SPDX-License-Identifier: Apache-2.0
// Pairs of kernels with the same result: the first of each has one fault that only hardware counters show, the
// second does not. They provoke the common stalls of a warp, and show what independent instructions, fast
// math and tiles in shared memory are worth. Recorded by tools/record_counters.py, shown in the guide.
//
//   nvcc -O3 -std=c++17 -lineinfo -arch=native -o kernel_pairs kernel_pairs.cu
//   ./kernel_pairs           the median of five launches of each, and how far the results of a pair differ
//   ./kernel_pairs 1         one launch of each, for a profiler
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int HOPS = 64;     // of a walker of chase
constexpr int BYTES = 64;    // of a thread of copy_narrow
constexpr int ROUNDS = 16;   // over the table of table_conflicts
constexpr int STEPS = 4096;  // of a recurrence of chain
constexpr int GROUP = 4;     // items of a thread
constexpr int ROW = 256;     // numbers that are one sum of sum_at_barriers

static unsigned blocks(long long n, int size) { return static_cast<unsigned>((n + size - 1) / size); }

// ---- waits for global memory: one load at a time, or four ----

__global__ void chase(const int* next, int* out, int n) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
#pragma unroll 1
  for (int walker = first; walker < n; walker += threads) {
    int node = walker;
#pragma unroll 1
    for (int hop = 0; hop < HOPS; hop++) node = next[node];
    out[walker] = node;
  }
}

__global__ void chase_four(const int* next, int* out, int n) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  int node[GROUP];
#pragma unroll
  for (int j = 0; j < GROUP; j++) node[j] = min(first + j * threads, n - 1);
#pragma unroll 1
  for (int hop = 0; hop < HOPS; hop++) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) node[j] = next[node[j]];
  }
#pragma unroll
  for (int j = 0; j < GROUP; j++) {
    if (first + j * threads < n) out[first + j * threads] = node[j];
  }
}

// n walkers, GROUP of them for each thread. next: at least n numbers of nodes.
extern "C" int run_chase(const int* next, int* out, int n) {
  chase<<<blocks(n, 128 * GROUP), 128>>>(next, out, n);
  return cudaGetLastError();
}
extern "C" int run_chase_four(const int* next, int* out, int n) {
  chase_four<<<blocks(n, 128 * GROUP), 128>>>(next, out, n);
  return cudaGetLastError();
}

// ---- the queue of global accesses is full: many narrow ones, or few wide ones ----

__global__ void copy_narrow(const char* __restrict__ in, char* __restrict__ out, int n) {
  const long long first = (blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x) * BYTES;
  if (first >= n) return;
#pragma unroll
  for (int k = 0; k < BYTES; k++) out[first + k] = in[first + k];
}

__global__ void copy_wide(const int4* in, int4* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i];
}

// n bytes, a multiple of BYTES.
extern "C" int run_copy_narrow(const int* in, int* out, int n) {
  copy_narrow<<<blocks(n / BYTES, 256), 256>>>(reinterpret_cast<const char*>(in),
                                               reinterpret_cast<char*>(out), n);
  return cudaGetLastError();
}
extern "C" int run_copy_wide(const int* in, int* out, int n) {
  copy_wide<<<blocks(n / 16, 256), 256>>>(reinterpret_cast<const int4*>(in), reinterpret_cast<int4*>(out),
                                          n / 16);
  return cudaGetLastError();
}

// ---- shared memory: all lanes in one bank, or each in its own ----

template <int STRIDE>
__device__ __forceinline__ float sum_of_rows(const float* in, float* table) {
  for (int k = threadIdx.x; k < 1024; k += blockDim.x) table[k / 32 * STRIDE + k % 32] = in[k];
  __syncthreads();
  const int row = threadIdx.x % 32, warp = threadIdx.x / 32;
  float sum = 0.0f;
#pragma unroll 1
  for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
    for (int column = 0; column < 32; column++) {
      sum += table[row * STRIDE + (column + round + warp) % 32];
    }
  }
  return sum;
}

__global__ void table_conflicts(const float* in, float* out, int n) {
  __shared__ float table[32 * 32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = sum_of_rows<32>(in, table);
  if (i < n) out[i] = sum;
}

__global__ void table_padded(const float* in, float* out, int n) {
  __shared__ float table[32 * 33];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float sum = sum_of_rows<33>(in, table);
  if (i < n) out[i] = sum;
}

// in: 1024 floats; n results.
extern "C" int run_table_conflicts(const float* in, float* out, int n) {
  table_conflicts<<<blocks(n, 256), 256>>>(in, out, n);
  return cudaGetLastError();
}
extern "C" int run_table_padded(const float* in, float* out, int n) {
  table_padded<<<blocks(n, 256), 256>>>(in, out, n);
  return cudaGetLastError();
}

// ---- the instruction before: one chain of them, or four independent ones ----

__global__ void chain(const float* in, float* out, int n, float rate) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
#pragma unroll 1
  for (int item = first; item < n; item += threads) {
    const float more = in[item];
    float x = more;
#pragma unroll 16
    for (int step = 0; step < STEPS; step++) x = x * rate + more;
    out[item] = x;
  }
}

__global__ void chain_four(const float* in, float* out, int n, float rate) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  float x[GROUP], more[GROUP];
#pragma unroll
  for (int j = 0; j < GROUP; j++) x[j] = more[j] = in[min(first + j * threads, n - 1)];
#pragma unroll 16
  for (int step = 0; step < STEPS; step++) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) x[j] = x[j] * rate + more[j];
  }
#pragma unroll
  for (int j = 0; j < GROUP; j++) {
    if (first + j * threads < n) out[first + j * threads] = x[j];
  }
}

// n items, GROUP of them for each thread.
extern "C" int run_chain(const float* in, float* out, int n) {
  chain<<<blocks(n, 128 * GROUP), 128>>>(in, out, n, 0.75f);
  return cudaGetLastError();
}
extern "C" int run_chain_four(const float* in, float* out, int n) {
  chain_four<<<blocks(n, 128 * GROUP), 128>>>(in, out, n, 0.75f);
  return cudaGetLastError();
}

// ---- a busy unit: float64 where float32 would do ----

template <typename Number>
__device__ __forceinline__ float four_chains(float given, Number rate) {
  const Number start = given;
  Number x[GROUP];
#pragma unroll
  for (int j = 0; j < GROUP; j++) x[j] = start + j;
#pragma unroll 16
  for (int step = 0; step < STEPS / 8; step++) {
#pragma unroll
    for (int j = 0; j < GROUP; j++) x[j] = x[j] * rate + start;
  }
  return static_cast<float>(x[0] + x[1] + x[2] + x[3]);
}

__global__ void in_float64(const float* in, float* out, int n, float rate) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = four_chains<double>(in[i], rate);
}

__global__ void in_float32(const float* in, float* out, int n, float rate) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = four_chains<float>(in[i], rate);
}

extern "C" int run_in_float64(const float* in, float* out, int n) {
  in_float64<<<blocks(n, 256), 256>>>(in, out, n, 0.75f);
  return cudaGetLastError();
}
extern "C" int run_in_float32(const float* in, float* out, int n) {
  in_float32<<<blocks(n, 256), 256>>>(in, out, n, 0.75f);
  return cudaGetLastError();
}

// ---- barriers: a block waits for one thread, or no warp for another ----

__global__ void sum_at_barriers(const int* in, int* out, int n) {
  __shared__ int row[ROW];
  for (int i = blockIdx.x; i < n; i += gridDim.x) {
    row[threadIdx.x] = in[i * static_cast<long long>(ROW) + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      int sum = 0;
      for (int k = 0; k < ROW; k++) sum += row[k];
      out[i] = sum;
    }
    __syncthreads();
  }
}

__global__ void sum_in_warps(const int* in, int* out, int n) {
  const int warps = gridDim.x * (blockDim.x / 32), lane = threadIdx.x % 32;
  for (int i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < n; i += warps) {
    int sum = 0;
#pragma unroll
    for (int k = 0; k < ROW / 32; k++) sum += in[i * static_cast<long long>(ROW) + k * 32 + lane];
    for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (lane == 0) out[i] = sum;
  }
}

// n rows of ROW numbers.
extern "C" int run_sum_at_barriers(const int* in, int* out, int n) {
  sum_at_barriers<<<min(n, 1056), ROW>>>(in, out, n);
  return cudaGetLastError();
}
extern "C" int run_sum_in_warps(const int* in, int* out, int n) {
  sum_in_warps<<<min(n, 1056), ROW>>>(in, out, n);
  return cudaGetLastError();
}

// ---- fast math: functions that are exact within a rounding or two, or the hardware's own ----

__global__ void exact_math(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
#pragma unroll 1
  for (int round = 0; round < 32; round++) x = logf(1.0f + expf(x)) / (1.0f + expf(-x));
  out[i] = x;
}

__global__ void fast_math(const float* in, float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
#pragma unroll 1
  for (int round = 0; round < 32; round++) {
    x = __fdividef(__logf(1.0f + __expf(x)), 1.0f + __expf(-x));
  }
  out[i] = x;
}

extern "C" int run_exact_math(const float* in, float* out, int n) {
  exact_math<<<blocks(n, 256), 256>>>(in, out, n);
  return cudaGetLastError();
}
extern "C" int run_fast_math(const float* in, float* out, int n) {
  fast_math<<<blocks(n, 256), 256>>>(in, out, n);
  return cudaGetLastError();
}

// ---- redundant loads: coalesced, but the same numbers again and again, or tiles in shared memory ----

constexpr int TILE = 32, TILE_ROWS = 8;

// out = a a, n x n, rows of n numbers; n is a multiple of TILE.
__global__ void multiply_untiled(const float* a, float* out, int n) {
  const int column = blockIdx.x * TILE + threadIdx.x;
  float sum[TILE / TILE_ROWS] = {};
  for (int k = 0; k < n; k++) {
    for (int j = 0; j < TILE / TILE_ROWS; j++) {
      const int row = blockIdx.y * TILE + threadIdx.y + j * TILE_ROWS;
      sum[j] += a[row * static_cast<long long>(n) + k] * a[k * static_cast<long long>(n) + column];
    }
  }
  for (int j = 0; j < TILE / TILE_ROWS; j++) {
    out[(blockIdx.y * TILE + threadIdx.y + j * TILE_ROWS) * static_cast<long long>(n) + column] = sum[j];
  }
}

__global__ void multiply_tiled(const float* a, float* out, int n) {
  __shared__ float left[TILE][TILE], right[TILE][TILE];
  const int column = blockIdx.x * TILE + threadIdx.x;
  float sum[TILE / TILE_ROWS] = {};
  for (int first = 0; first < n; first += TILE) {
    for (int j = threadIdx.y; j < TILE; j += TILE_ROWS) {
      left[j][threadIdx.x] = a[(blockIdx.y * TILE + j) * static_cast<long long>(n) + first + threadIdx.x];
      right[j][threadIdx.x] = a[(first + j) * static_cast<long long>(n) + column];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; k++) {
#pragma unroll
      for (int j = 0; j < TILE / TILE_ROWS; j++) {
        sum[j] += left[threadIdx.y + j * TILE_ROWS][k] * right[k][threadIdx.x];
      }
    }
    __syncthreads();
  }
  for (int j = 0; j < TILE / TILE_ROWS; j++) {
    out[(blockIdx.y * TILE + threadIdx.y + j * TILE_ROWS) * static_cast<long long>(n) + column] = sum[j];
  }
}

extern "C" int run_multiply_untiled(const float* a, float* out, int n) {
  multiply_untiled<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE_ROWS)>>>(a, out, n);
  return cudaGetLastError();
}
extern "C" int run_multiply_tiled(const float* a, float* out, int n) {
  multiply_tiled<<<dim3(n / TILE, n / TILE), dim3(TILE, TILE_ROWS)>>>(a, out, n);
  return cudaGetLastError();
}

static void need(int status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
  std::exit(1);
}

template <typename T>
static float timed_ms(const char* name, int (*run)(const T*, T*, int), const T* in, T* out, int n,
                      int count) {
  cudaEvent_t begin, end;
  need(cudaEventCreate(&begin), "cudaEventCreate");
  need(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> ms(count);
  for (float& each : ms) {
    need(cudaEventRecord(begin), "cudaEventRecord");
    need(run(in, out, n), name);
    need(cudaEventRecord(end), "cudaEventRecord");
    need(cudaEventSynchronize(end), name);
    need(cudaEventElapsedTime(&each, begin, end), "cudaEventElapsedTime");
  }
  std::sort(ms.begin(), ms.end());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms[count / 2];
}

// Launches both kernels of a pair on the same numbers, and prints times and the largest relative difference.
template <typename T>
static void pair(const char* fault, const char* repaired, int (*one)(const T*, T*, int),
                 int (*other)(const T*, T*, int), const std::vector<T>& numbers, int n, size_t results,
                 int count) {
  T *in = nullptr, *out[2] = {};
  need(cudaMalloc(&in, numbers.size() * sizeof(T)), "cudaMalloc");
  need(cudaMemcpy(in, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  std::vector<T> got[2];
  for (int i = 0; i < 2; i++) {
    need(cudaMalloc(&out[i], results * sizeof(T)), "cudaMalloc");
    const float ms = timed_ms(i ? repaired : fault, i ? other : one, in, out[i], n, count);
    got[i].resize(results);
    need(cudaMemcpy(got[i].data(), out[i], results * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    std::printf("%-18s %8.4f ms\n", i ? repaired : fault, ms);
  }
  double worst = 0;
  for (size_t i = 0; i < results; i++) {
    const double a = got[0][i], b = got[1][i];
    worst = std::max(worst, std::abs(a - b) / std::max(1e-30, std::max(std::abs(a), std::abs(b))));
  }
  std::printf("%-18s %8.1e relative difference at most\n", "", worst);
  if (!(worst < 1e-3)) std::exit(1);
  for (void* each : {static_cast<void*>(in), static_cast<void*>(out[0]), static_cast<void*>(out[1])}) {
    cudaFree(each);
  }
}

#define PAIR(one, other, numbers, n, results) \
  pair(#one, #other, run_##one, run_##other, numbers, n, results, count)

int main(int argc, char** words) {
  const int count = argc > 1 ? std::max(1, std::atoi(words[1])) : 5;
  unsigned state = 1;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) / 4294967296.0; };
  const int nodes = 1 << 26, walkers = 1 << 15, bytes = 1 << 26, items = 128 * 132 * GROUP, n = 1 << 20;
  std::vector<int> next(nodes);
  for (unsigned i = 0; i < next.size(); i++) next[i] = static_cast<int>((i * 1664525u + 1013904223u) % nodes);
  std::vector<int> small(nodes / 16);
  for (size_t i = 0; i < small.size(); i++) small[i] = static_cast<int>(i % 1021);
  std::vector<float> numbers(n);
  for (float& each : numbers) each = static_cast<float>(random());
  PAIR(chase, chase_four, next, walkers, walkers);
  PAIR(copy_narrow, copy_wide, next, bytes, bytes / sizeof(int));
  PAIR(table_conflicts, table_padded, numbers, n, n);
  PAIR(chain, chain_four, numbers, items, items);
  PAIR(in_float64, in_float32, numbers, n, n);
  PAIR(sum_at_barriers, sum_in_warps, small, nodes / 16 / ROW, nodes / 16 / ROW);
  PAIR(exact_math, fast_math, numbers, n, n);
  PAIR(multiply_untiled, multiply_tiled, numbers, 1024, n);
  return 0;
}
