// SPDX-License-Identifier: Apache-2.0
// Kernels for a roofline: two that measure the roofs, and seven to place under them.
//
//   make && ./roofline_kernels        the median of five launches of each
//   ./roofline_kernels 1              one launch of each, for a profiler
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

constexpr int TILE = 32;

static __device__ __forceinline__ long long global_thread() {
  return blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
}

// The memory roof: read and write, nothing else.
__global__ void peak_copy(const float4* in, float4* out, long long n) {
  const long long i = global_thread();
  if (i < n) out[i] = in[i];
}

// The compute roof: eight independent chains of multiply-adds in registers.
__global__ void peak_fma(float* out, int rounds, float a, float b) {
  float x[8];
#pragma unroll
  for (int j = 0; j < 8; j++) x[j] = static_cast<float>(threadIdx.x + j);
#pragma unroll 8
  for (int round = 0; round < rounds; round++) {
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = fmaf(x[j], a, b);
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; j++) sum += x[j];
  out[global_thread()] = sum;
}

__global__ void triad(const float* x, const float* y, float* out, long long n, float a) {
  const long long i = global_thread();
  if (i < n) out[i] = x[i] + a * y[i];
}

// A polynomial of this degree by Horner's rule.
template <int DEGREE>
static __device__ __forceinline__ float polynomial(float x, float a) {
  float sum = a;
#pragma unroll
  for (int k = 0; k < DEGREE; k++) sum = fmaf(sum, x, a);
  return sum;
}

__global__ void polynomial_16(const float* in, float* out, long long n, float a) {
  const long long i = global_thread();
  if (i < n) out[i] = polynomial<16>(in[i], a);
}

__global__ void polynomial_512(const float* in, float* out, long long n, float a) {
  const long long i = global_thread();
  if (i < n) out[i] = polynomial<512>(in[i], a);
}

// Every block reads the same table, once each round.
__global__ void table_sums(const float4* table, float* out, int n, int rounds) {
  float sum = 0.0f;
  for (int round = 0; round < rounds; round++) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      const float4 v = table[(i + blockIdx.x * 4096) % n];
      sum += v.x + v.y + v.z + v.w;
    }
  }
  out[global_thread()] = sum;
}

// One product after the other, each waiting for the one before.
__global__ void chain(const float* in, float* out, int n, int rounds, float a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i];
#pragma unroll 4
  for (int round = 0; round < rounds; round++) x = fmaf(x, a, a);
  out[i] = x;
}

// Matrix products of size x size, one element of c for each thread.
__global__ void product_rows(const float* a, const float* b, float* c, int size) {
  const int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  float sum = 0.0f;
  for (int k = 0; k < size; k++) sum = fmaf(a[row * size + k], b[k * size + col], sum);
  c[row * size + col] = sum;
}

__global__ void product_tiles(const float* a, const float* b, float* c, int size) {
  __shared__ float left[TILE][TILE], right[TILE][TILE];
  const int col = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
  float sum = 0.0f;
  for (int first = 0; first < size; first += TILE) {
    left[threadIdx.y][threadIdx.x] = a[row * size + first + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * size + col];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; k++) sum = fmaf(left[threadIdx.y][k], right[k][threadIdx.x], sum);
    __syncthreads();
  }
  c[row * size + col] = sum;
}

static void need(int status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(status)));
  std::exit(1);
}

// Launches, compares some results with the host's, and prints the time.
template <typename Launch, typename Right>
static void measure(const char* name, int launches, float* out, long long n, Launch launch, Right right) {
  cudaEvent_t begin, end;
  need(cudaEventCreate(&begin), "cudaEventCreate");
  need(cudaEventCreate(&end), "cudaEventCreate");
  need(cudaMemset(out, 0xff, n * sizeof(float)), "cudaMemset");
  std::vector<float> ms(launches);
  for (float& each : ms) {
    need(cudaEventRecord(begin), "cudaEventRecord");
    launch();
    need(cudaGetLastError(), name);
    need(cudaEventRecord(end), "cudaEventRecord");
    need(cudaEventSynchronize(end), name);
    need(cudaEventElapsedTime(&each, begin, end), "cudaEventElapsedTime");
  }
  for (int k = 0; k < 32; k++) {
    const long long i = k * (n - 1) / 31;
    float got = 0.0f;
    need(cudaMemcpy(&got, out + i, sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    const double wanted = right(i);
    if (std::abs(got - wanted) <= 1e-3 * std::max(1.0, std::abs(wanted))) continue;
    std::fprintf(stderr, "%s: element %lld is %g, not %g\n", name, i, got, wanted);
    std::exit(1);
  }
  std::sort(ms.begin(), ms.end());
  std::printf("%-16s %8.3f ms\n", name, ms[launches / 2]);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

int main(int count, char** words) {
  const int launches = count > 1 ? std::max(1, std::atoi(words[1])) : 5;
  int l2_bytes = 0, sms = 0;
  need(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  need(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
  long long n = 1 << 22;  // arrays of at least four times the L2 cache
  while (n < (1 << 26) && n < l2_bytes) n *= 2;
  const int table = 1 << 16;  // float4: 1 MB, a small part of any L2 cache
  const int size = 2048;
  const float a = 0.9f;

  std::vector<float> host(n);
  unsigned state = 1;
  for (float& each : host) each = ((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f - 0.5f;
  float *x = nullptr, *y = nullptr, *out = nullptr;
  for (float** each : {&x, &y, &out}) need(cudaMalloc(each, n * sizeof(float)), "cudaMalloc");
  for (float* each : {x, y})
    need(cudaMemcpy(each, host.data(), n * sizeof(float), cudaMemcpyDefault), "copy");
  const unsigned whole = static_cast<unsigned>(n / 256), quarter = static_cast<unsigned>(n / 1024);

  measure(
      "peak_copy", launches, out, n,
      [&] {
        peak_copy<<<quarter, 256>>>(reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(out),
                                    n / 4);
      },
      [&](long long i) { return host[i]; });
  measure(
      "peak_fma", launches, out, sms * 2048LL, [&] { peak_fma<<<sms * 8, 256>>>(out, 8192, 0.5f, 1.0f); },
      [&](long long) { return 16.0; });
  measure(
      "triad", launches, out, n, [&] { triad<<<whole, 256>>>(x, y, out, n, a); },
      [&](long long i) { return host[i] + a * host[i]; });
  const auto horner = [&](int degree, double at) {
    double sum = a;
    for (int k = 0; k < degree; k++) sum = sum * at + a;
    return sum;
  };
  measure(
      "polynomial_16", launches, out, n, [&] { polynomial_16<<<whole, 256>>>(x, out, n, a); },
      [&](long long i) { return horner(16, host[i]); });
  measure(
      "polynomial_512", launches, out, n, [&] { polynomial_512<<<whole, 256>>>(x, out, n, a); },
      [&](long long i) { return horner(512, host[i]); });
  measure(
      "table_sums", launches, out, sms * 2048LL,
      [&] { table_sums<<<sms * 2, 1024>>>(reinterpret_cast<const float4*>(x), out, table, 4); },
      [&](long long i) {
        double sum = 0;
        for (int k = static_cast<int>(i % 1024); k < table; k += 1024) {
          const int at = (k + static_cast<int>(i / 1024) * 4096) % table;
          for (int j = 0; j < 4; j++) sum += host[4 * at + j];
        }
        return 4 * sum;
      });
  measure(
      "chain", launches, out, sms * 64LL, [&] { chain<<<sms, 64>>>(x, out, sms * 64, 65536, a); },
      [&](long long) { return a / (1.0 - a); });
  const auto dot = [&](long long i) {
    double sum = 0;
    for (long long k = 0; k < size; k++) sum += double(host[i / size * size + k]) * host[k * size + i % size];
    return sum;
  };
  const dim3 tiles(size / TILE, size / TILE), block(TILE, TILE);
  measure(
      "product_rows", launches, out, 1LL * size * size,
      [&] { product_rows<<<tiles, block>>>(x, y, out, size); }, dot);
  measure(
      "product_tiles", launches, out, 1LL * size * size,
      [&] { product_tiles<<<tiles, block>>>(x, y, out, size); }, dot);
  return 0;
}
