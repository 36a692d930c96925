// SPDX-License-Identifier: Apache-2.0
// Five kernels that move data and compute almost nothing. Each has a launcher; main() runs them all and checks
// their results.
//
//   make && ./memory_bandwidth        the median of five launches of each, in GB/s of useful bytes
//   ./memory_bandwidth 1              one launch of each, for a profiler
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct Particle {
  float x, y, z, vx, vy, vz, mass, height;
};

// One number after the other.
__global__ void scale_field(const float* in, float* out, long long n, float factor) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = factor * in[i];
}

// The same for a matrix: one thread for each element, columns along x.
__global__ void scale_grid(const float* in, float* out, int rows, int cols, float factor) {
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < rows && col < cols) {
    const long long i = static_cast<long long>(row) * cols + col;
    out[i] = factor * in[i];
  }
}

// One number of each particle.
__global__ void scale_heights(const Particle* particles, float* out, long long n, float factor) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = factor * particles[i].height;
}

// Numbers from anywhere in a table.
__global__ void look_up(const float* table, const int* index, float* out, long long n) {
  const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = table[index[i]];
}

// Each tile of 32 x 32 elements is transposed, and stays where it is.
__global__ void flip_tiles(const float* in, float* out, int cols) {
  __shared__ float tile[32][33];  // a column of it lies in 32 banks
  const long long first = blockIdx.y * 32LL * cols + blockIdx.x * 32;
  for (int row = threadIdx.y; row < 32; row += blockDim.y) {
    tile[row][threadIdx.x] = in[first + static_cast<long long>(row) * cols + threadIdx.x];
  }
  __syncthreads();
  for (int row = threadIdx.y; row < 32; row += blockDim.y) {
    out[first + static_cast<long long>(row) * cols + threadIdx.x] = tile[threadIdx.x][row];
  }
}

static unsigned blocks(long long n, int size) { return static_cast<unsigned>((n + size - 1) / size); }

// The grader calls run_scale_grid and run_flip_tiles: keep their names and parameters.
extern "C" int run_scale_field(const float* in, float* out, long long n, float factor) {
  scale_field<<<blocks(n, 256), 256>>>(in, out, n, factor);
  return cudaGetLastError();
}

extern "C" int run_scale_grid(const float* in, float* out, long long rows, long long cols, float factor) {
  const dim3 block(32, 8);
  const dim3 grid(blocks(cols, 32), blocks(rows, 8));
  scale_grid<<<grid, block>>>(in, out, static_cast<int>(rows), static_cast<int>(cols), factor);
  return cudaGetLastError();
}

extern "C" int run_scale_heights(const Particle* particles, float* out, long long n, float factor) {
  scale_heights<<<blocks(n, 256), 256>>>(particles, out, n, factor);
  return cudaGetLastError();
}

extern "C" int run_look_up(const float* table, const int* index, float* out, long long n) {
  look_up<<<blocks(n, 256), 256>>>(table, index, out, n);
  return cudaGetLastError();
}

// rows and cols are multiples of 32
extern "C" int run_flip_tiles(const float* in, float* out, long long rows, long long cols) {
  const dim3 grid(static_cast<unsigned>(cols / 32), static_cast<unsigned>(rows / 32));
  flip_tiles<<<grid, dim3(32, 8)>>>(in, out, static_cast<int>(cols));
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

// Launches, checks some of the results, and prints the rate of the useful bytes.
template <typename Launch, typename Right>
static void measure(const char* name, int launches, double useful_bytes, float* out, long long n,
                    Launch launch, Right right) {
  cudaEvent_t begin, end;
  need(cudaEventCreate(&begin), "cudaEventCreate");
  need(cudaEventCreate(&end), "cudaEventCreate");
  need(cudaMemset(out, 0xff, n * sizeof(float)), "cudaMemset");
  std::vector<float> ms(launches);
  for (float& each : ms) {
    need(cudaEventRecord(begin), "cudaEventRecord");
    need(launch(), name);
    need(cudaEventRecord(end), "cudaEventRecord");
    need(cudaEventSynchronize(end), name);
    need(cudaEventElapsedTime(&each, begin, end), "cudaEventElapsedTime");
  }
  const long long some = std::min(n, 1LL << 20);
  std::vector<float> got(some);
  for (const long long first : {0LL, n - some}) {
    need(cudaMemcpy(got.data(), out + first, some * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (long long i = 0; i < some; i++) {
      if (got[i] == right(first + i)) continue;
      std::fprintf(stderr, "%s: element %lld is %g, not %g\n", name, first + i, got[i], right(first + i));
      std::exit(1);
    }
  }
  std::sort(ms.begin(), ms.end());
  const float median = ms[launches / 2];
  std::printf("%-22s %8.3f ms %8.0f GB/s useful\n", name, median, useful_bytes / median / 1e6);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

int main(int count, char** words) {
  const int launches = count > 1 ? std::max(1, std::atoi(words[1])) : 5;
  int l2_bytes = 0;
  need(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  int side = 1024;  // a matrix of at least four times the L2 cache
  while (side < 16384 && 4.0 * side * side < 4.0 * l2_bytes) side += 1024;
  const long long n = static_cast<long long>(side) * side;
  const long long particles = n / 8, looks = n / 4;
  const long long small = std::min<long long>(l2_bytes / 8 / sizeof(float), n);
  std::printf("matrices of %d x %d floats, L2 cache %.0f MB\n", side, side, l2_bytes / 1e6);

  std::vector<float> field(n);
  std::vector<int> anywhere(looks), nearby(looks);
  unsigned state = 1;
  for (float& each : field) each = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8);
  for (long long i = 0; i < looks; i++) {
    state = state * 1664525u + 1013904223u;
    anywhere[i] = static_cast<int>((static_cast<unsigned long long>(state) * n) >> 32);
    nearby[i] = static_cast<int>((static_cast<unsigned long long>(state) * small) >> 32);
  }
  float* in = on_device(field);
  int* far_index = on_device(anywhere);
  int* near_index = on_device(nearby);
  float* out = nullptr;
  need(cudaMalloc(&out, n * sizeof(float)), "cudaMalloc");

  const float factor = 0.5f;
  const auto* cloud = reinterpret_cast<const Particle*>(in);
  const auto scaled = [&](long long i) { return factor * field[i]; };
  const auto flipped = [&](long long i) {
    const long long row = i / side, col = i % side;
    return field[(row / 32 * 32 + col % 32) * side + col / 32 * 32 + row % 32];
  };
  measure(
      "scale_field", launches, 8.0 * n, out, n, [&] { return run_scale_field(in, out, n, factor); }, scaled);
  measure(
      "scale_grid", launches, 8.0 * n, out, n, [&] { return run_scale_grid(in, out, side, side, factor); },
      scaled);
  measure(
      "scale_heights", launches, 8.0 * particles, out, particles,
      [&] { return run_scale_heights(cloud, out, particles, factor); },
      [&](long long i) { return factor * field[8 * i + 7]; });
  measure(
      "look_up, a small table", launches, 12.0 * looks, out, looks,
      [&] { return run_look_up(in, near_index, out, looks); }, [&](long long i) { return field[nearby[i]]; });
  measure(
      "look_up, a large table", launches, 12.0 * looks, out, looks,
      [&] { return run_look_up(in, far_index, out, looks); },
      [&](long long i) { return field[anywhere[i]]; });
  measure(
      "flip_tiles", launches, 8.0 * n, out, n, [&] { return run_flip_tiles(in, out, side, side); }, flipped);
  return 0;
}
