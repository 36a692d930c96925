// SPDX-License-Identifier: Apache-2.0
// The same question in CUDA C++: heat spreads over a square plate, and each round says how much the plate still changes.
//
//   make && ./improved
//   nsys profile --trace=cuda -o improved ./improved
//
// The plate stays on the GPU for all rounds, and the GPU finds the largest change.

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

// The mean of the four neighbours of each cell; the edge of the plate keeps its temperature. The largest change of any
// cell, as bits: those of positive numbers have the order of the numbers.
__global__ void spread(const float* old, float* plate, int size, int* change) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  float moved = 0.0f;
  if (x < size && y < size) {
    const size_t at = static_cast<size_t>(y) * size + x;
    const bool edge = x == 0 || y == 0 || x == size - 1 || y == size - 1;
    const float now = edge ? old[at] : 0.25f * (old[at - 1] + old[at + 1] + old[at - size] + old[at + size]);
    moved = fabsf(now - old[at]);
    plate[at] = now;
  }
  const int largest = __reduce_max_sync(0xffffffffu, __float_as_int(moved));
  if (threadIdx.x == 0 && largest > *change) atomicMax(change, largest);
}

// So many rounds on a plate of size x size cells in host memory. Writes the largest change of each round. Returns 0, or
// the error code of CUDA.
extern "C" int simulate(float* plate, int size, int rounds, float* changes) {
  const size_t bytes = static_cast<size_t>(size) * size * sizeof(float);
  float *from = nullptr, *to = nullptr;
  int* change = nullptr;
  if (cudaMalloc(&from, bytes) != cudaSuccess || cudaMalloc(&to, bytes) != cudaSuccess ||
      cudaMalloc(&change, rounds * sizeof(int)) != cudaSuccess)
    return cudaGetLastError();
  const dim3 block(32, 8);
  const dim3 grid((size + block.x - 1) / block.x, (size + block.y - 1) / block.y);
  cudaMemset(change, 0, rounds * sizeof(int));
  cudaMemcpy(from, plate, bytes, cudaMemcpyHostToDevice);
  for (int round = 0; round < rounds; ++round) {
    spread<<<grid, block>>>(from, to, size, change + round);
    std::swap(from, to);
  }
  cudaMemcpy(changes, change, rounds * sizeof(float), cudaMemcpyDeviceToHost);  // waits for the kernels
  cudaMemcpy(plate, from, bytes, cudaMemcpyDeviceToHost);
  cudaFree(from);
  cudaFree(to);
  cudaFree(change);
  return cudaGetLastError();
}

int main() {
  const int size = 4096, rounds = 10;
  std::vector<float> plate(static_cast<size_t>(size) * size, 20.0f), changes(rounds);
  for (int x = 0; x < size; ++x) plate[x] = 100.0f;
  const auto begin = std::chrono::steady_clock::now();
  const int error = simulate(plate.data(), size, rounds, changes.data());
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  if (error != 0) {
    std::fprintf(stderr, "CUDA error: %s\n", cudaGetErrorString(static_cast<cudaError_t>(error)));
    return 1;
  }
  std::printf("last change %.4f, %.1f ms for %d rounds\n", changes[rounds - 1], took.count(), rounds);
  return 0;
}
