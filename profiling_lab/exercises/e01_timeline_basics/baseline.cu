// SPDX-License-Identifier: Apache-2.0
// The same question in CUDA C++: heat spreads over a square plate, and each round says how much the plate still changes.
//
//   make && ./baseline
//   nsys profile --trace=cuda -o baseline ./baseline
//
// improved.cu starts as a copy of this file: change that one.

#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

// The mean of the four neighbours of each cell; the edge of the plate keeps its temperature.
__global__ void spread(const float* old, float* plate, int size) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= size || y >= size) return;
  const size_t at = static_cast<size_t>(y) * size + x;
  const bool edge = x == 0 || y == 0 || x == size - 1 || y == size - 1;
  plate[at] = edge ? old[at] : 0.25f * (old[at - 1] + old[at + 1] + old[at - size] + old[at + size]);
}

// So many rounds on a plate of size x size cells in host memory. Writes the largest change of each round. Returns 0, or
// the error code of CUDA.
extern "C" int simulate(float* plate, int size, int rounds, float* changes) {
  const size_t cells = static_cast<size_t>(size) * size;
  const size_t bytes = cells * sizeof(float);
  float *from = nullptr, *to = nullptr;
  if (cudaMalloc(&from, bytes) != cudaSuccess || cudaMalloc(&to, bytes) != cudaSuccess)
    return cudaGetLastError();
  std::vector<float> after(cells);
  const dim3 block(32, 8);
  const dim3 grid((size + block.x - 1) / block.x, (size + block.y - 1) / block.y);
  for (int round = 0; round < rounds; ++round) {
    cudaMemcpy(from, plate, bytes, cudaMemcpyHostToDevice);
    spread<<<grid, block>>>(from, to, size);
    cudaDeviceSynchronize();
    cudaMemcpy(after.data(), to, bytes, cudaMemcpyDeviceToHost);
    float largest = 0.0f;
    for (size_t i = 0; i < cells; ++i) {
      largest = std::fmax(largest, std::fabs(after[i] - plate[i]));
      plate[i] = after[i];
    }
    changes[round] = largest;
  }
  cudaFree(from);
  cudaFree(to);
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
