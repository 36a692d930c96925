// SPDX-License-Identifier: Apache-2.0
// Four kernels that leave most of the GPU's lanes or warps empty, three of them to their harm. Each has a
// launcher; main() runs them all and checks their results.
//
//   make && ./compute_metrics         the median of five launches of each
//   ./compute_metrics 1               one launch of each, for a profiler
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

constexpr int CHAINS = 128;            // independent recurrences of one thread of blend
constexpr int LARGEST_RADIUS = 12000;  // of smooth, in any of our jobs
constexpr int ROW = 32;                // floats of a node: 31 values, and the number of the next node

// Each thread carries CHAINS recurrences, each coupled to its neighbour.
__global__ void __launch_bounds__(256)
    blend(const float* in, float* out, long long n, int rounds, float rate) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  float value[CHAINS];
#pragma unroll
  for (int j = 0; j < CHAINS; j++) value[j] = in[i + j < n ? i + j : i + j - n];
#pragma unroll 1
  for (int round = 0; round < rounds; round++) {
    const float first = value[0];
#pragma unroll
    for (int j = 0; j < CHAINS; j++) value[j] = rate * (j + 1 < CHAINS ? value[j + 1] : first) + value[j];
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < CHAINS; j++) sum += value[j];
  out[i] = sum;
}

// The mean of 2 * radius + 1 neighbours; outside of the array they are zero.
__global__ void smooth(const float* in, float* out, long long n, int radius) {
  extern __shared__ float tile[];
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) - radius;
  for (int k = threadIdx.x; k < static_cast<int>(blockDim.x) + 2 * radius; k += blockDim.x) {
    const long long i = first + k;
    tile[k] = i >= 0 && i < n ? in[i] : 0.0f;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int k = 0; k <= 2 * radius; k++) sum += tile[threadIdx.x + k];
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = sum / (2 * radius + 1);
}

// Each item grows for its own number of steps. by_steps lists the items, those with most steps first: another
// kernel of the job needs it.
__global__ void grow(const float* start, const int* steps, const int* by_steps, float* out, int n,
                     float rate) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item >= n) return;
  float x = start[item];
  const int last = steps[item];
  for (int step = 0; step < last; step++) x += rate * (1.0f - x * x);
  out[item] = x;
}

// One warp for each walker. It goes from node to node and sums the 31 values of each.
__global__ void walk(const float* nodes, const int* first, float* out, int walkers, int steps) {
  const int walker = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (walker >= walkers) return;
  int node = first[walker];
  float sum = 0.0f;
  for (int step = 0; step < steps; step++) {
    const float word = nodes[static_cast<long long>(node) * ROW + lane];
    node = __float_as_int(__shfl_sync(0xffffffffu, word, 31));
    sum += word;
  }
  if (lane < 31) out[static_cast<long long>(walker) * 31 + lane] = sum;
}

static unsigned blocks(long long n, int size) { return static_cast<unsigned>((n + size - 1) / size); }

// The grader calls run_smooth, run_grow and run_walk: keep their names and parameters.
extern "C" int run_blend(const float* in, float* out, long long n, long long rounds, float rate) {
  blend<<<blocks(n, 256), 256>>>(in, out, n, static_cast<int>(rounds), rate);
  return cudaGetLastError();
}

extern "C" int run_smooth(const float* in, float* out, long long n, long long radius) {
  const int block = 128;
  const int bytes = (block + 2 * LARGEST_RADIUS) * static_cast<int>(sizeof(float));
  cudaFuncSetAttribute(smooth, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  smooth<<<blocks(n, block), block, bytes>>>(in, out, n, static_cast<int>(radius));
  return cudaGetLastError();
}

extern "C" int run_grow(const float* start, const int* steps, const int* by_steps, float* out, long long n,
                        float rate) {
  grow<<<blocks(n, 256), 256>>>(start, steps, by_steps, out, static_cast<int>(n), rate);
  return cudaGetLastError();
}

extern "C" int run_walk(const float* nodes, const int* first, float* out, long long walkers,
                        long long steps) {
  const int block = 32;
  walk<<<blocks(walkers * 32, block), block>>>(nodes, first, out, static_cast<int>(walkers),
                                               static_cast<int>(steps));
  return cudaGetLastError();
}

static void need(int status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
  std::exit(1);
}

template <typename T>
static T* on_device(const std::vector<T>& values) {
  T* there = nullptr;
  need(cudaMalloc(&there, values.size() * sizeof(T)), "cudaMalloc");
  need(cudaMemcpy(there, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return there;
}

// Launches, compares every `stride`-th result with the host's, and prints the time.
template <typename Launch, typename Right>
static void measure(const char* name, int launches, float* out, long long n, long long stride, Launch launch,
                    Right right) {
  cudaEvent_t begin, end;
  need(cudaEventCreate(&begin), "cudaEventCreate");
  need(cudaEventCreate(&end), "cudaEventCreate");
  need(cudaMemset(out, 0xff, n * sizeof(float)), "cudaMemset");
  std::vector<float> ms(launches), got(n);
  for (float& each : ms) {
    need(cudaEventRecord(begin), "cudaEventRecord");
    need(launch(), name);
    need(cudaEventRecord(end), "cudaEventRecord");
    need(cudaEventSynchronize(end), name);
    need(cudaEventElapsedTime(&each, begin, end), "cudaEventElapsedTime");
  }
  need(cudaMemcpy(got.data(), out, n * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (long long i = 0; i < n; i += stride) {
    const double wanted = right(i);
    if (std::abs(got[i] - wanted) <= 1e-4 * std::max(1.0, std::abs(wanted))) continue;
    std::fprintf(stderr, "%s: element %lld is %g, not %g\n", name, i, got[i], wanted);
    std::exit(1);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("%-8s %8.3f ms\n", name, ms[launches / 2]);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

int main(int count, char** words) {
  const int launches = count > 1 ? std::max(1, std::atoi(words[1])) : 5;
  const int n = 1 << 24, items = 1 << 21, nodes = 1 << 21, walkers = 1 << 14, steps = 256;
  const int threads = 1 << 18, rounds = 256, radius = 8;
  const float rate = 1.0f / 1024;
  unsigned state = 1;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) / 4294967296.0; };

  std::vector<float> field(n), start(items), table(static_cast<size_t>(nodes) * ROW);
  for (float& each : field) each = static_cast<float>(random() - 0.5);
  for (float& each : start) each = static_cast<float>(0.1 * random());
  for (float& each : table) each = static_cast<float>(random() - 0.5);
  std::vector<int> lengths(items), order(items), first(walkers);
  for (int& each : lengths) each = 16 + static_cast<int>(2000 * std::pow(random(), 8));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lengths[a] > lengths[b]; });
  for (int node = 0; node < nodes; node++) {
    const int next = static_cast<int>((node * 1664525u + 1013904223u) % nodes);
    std::copy_n(reinterpret_cast<const char*>(&next), sizeof(int),
                reinterpret_cast<char*>(&table[static_cast<size_t>(node) * ROW + 31]));
  }
  for (int& each : first) each = static_cast<int>(random() * nodes);
  float* d_field = on_device(field);
  float* d_start = on_device(start);
  float* d_table = on_device(table);
  int* d_lengths = on_device(lengths);
  int* d_order = on_device(order);
  int* d_first = on_device(first);
  float* out = nullptr;
  need(cudaMalloc(&out, n * sizeof(float)), "cudaMalloc");

  measure(
      "blend", launches, out, threads, 4099, [&] { return run_blend(d_field, out, threads, rounds, rate); },
      [&](long long i) {
        std::vector<double> value(CHAINS);
        for (int j = 0; j < CHAINS; j++) value[j] = field[(i + j) % threads];
        for (int round = 0; round < rounds; round++) {
          const double again = value[0];
          for (int j = 0; j < CHAINS; j++) value[j] += rate * (j + 1 < CHAINS ? value[j + 1] : again);
        }
        return std::accumulate(value.begin(), value.end(), 0.0);
      });
  measure(
      "smooth", launches, out, n, 101, [&] { return run_smooth(d_field, out, n, radius); },
      [&](long long i) {
        double sum = 0;
        for (long long k = i - radius; k <= i + radius; k++) sum += k >= 0 && k < n ? field[k] : 0.0f;
        return sum / (2 * radius + 1);
      });
  measure(
      "grow", launches, out, items, 101,
      [&] { return run_grow(d_start, d_lengths, d_order, out, items, rate); },
      [&](long long i) {
        double x = start[i];
        for (int step = 0; step < lengths[i]; step++) x += rate * (1 - x * x);
        return x;
      });
  measure(
      "walk", launches, out, walkers * 31LL, 1009,
      [&] { return run_walk(d_table, d_first, out, walkers, steps); },
      [&](long long i) {
        double sum = 0;
        int node = first[i / 31];
        for (int step = 0; step < steps; step++) {
          const float* row = &table[static_cast<size_t>(node) * ROW];
          sum += row[i % 31];
          std::copy_n(reinterpret_cast<const char*>(row + 31), sizeof(int), reinterpret_cast<char*>(&node));
        }
        return sum;
      });
  return 0;
}
