// SPDX-License-Identifier: Apache-2.0
// C = A B for square fp32 matrices that are so small that cuBLAS leaves most of the GPU idle: 512 x 512 is only 16
// tiles of 128 x 128.
//
// Mapping   a block computes a tile of 64 x 32. Each of its eight warps computes the whole tile for an eighth
//           of the depth: 64 sums per thread, with 16 numbers read from shared memory per step. At the end
//           the warps' tiles are added in a fixed order: equal inputs give equal bits.
// Bytes     d^3 / 32 + d^3 / 64 elements through L2.     Flops  2 d^3.     Roof  the multiply-adds.
// Contract  fits_square_product(); fp32 without TF32.
#include <cstdint>

#include "cuda/launch.h"
#include "ops/heavy_layer/heavy_layer.h"

namespace plab::ops {

namespace {

constexpr int kSquareThreads = 256, kWarps = kSquareThreads / 32;
constexpr int kRows = 64, kColumns = 32, kDepth = 64;         // of a tile, and of a stage
constexpr int kLanesDown = 8, kLanesAcross = 4, kVector = 4;  // a warp's lanes; floats in 16 bytes
constexpr int kStageFloats = (kRows + kColumns) * kDepth, kTileFloats = kRows * kColumns;
constexpr int kSharedBytes = cuda::larger(2 * kStageFloats, kWarps* kTileFloats) * int{sizeof(float)};

// Copies an operand's part of a stage from global to shared memory, where it is ordered by depth, then by position
// in the tile. kAlongDepth: neighbours in global memory differ in depth, so the copy transposes. Then the rows of
// every four depths are shifted by eight, because otherwise a warp would write to few banks.
template <bool kAlongDepth, int kSize>
class Share {
 public:
  __device__ void load(const float* matrix, int d, int first, int depth) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Place at = place(i);
      const int64_t position = first + at.position, k = depth + at.depth;
      const float* from = matrix + (kAlongDepth ? position * d + k : k * d + position);
      vectors_[i] =
          position < d && k < d ? __ldg(reinterpret_cast<const float4*>(from)) : make_float4(0, 0, 0, 0);
    }
  }

  __device__ void store(float* stage) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Place at = place(i);
      float* to = stage + at.depth * kSize + shifted(at.position, at.depth);
      if constexpr (kAlongDepth) {
        to[0] = vectors_[i].x, to[kSize] = vectors_[i].y;
        to[2 * kSize] = vectors_[i].z, to[3 * kSize] = vectors_[i].w;
      } else {
        *reinterpret_cast<float4*>(to) = vectors_[i];
      }
    }
  }

  // What one of kLanes lanes multiplies at one depth: vectors with a distance of kLanes vectors.
  template <int kLanes>
  static __device__ void read(const float* stage, int depth, int lane, float (&v)[kSize / kLanes]) {
#pragma unroll
    for (int i = 0; i < kSize / kLanes; i += kVector) {
      const int position = shifted((i / kVector * kLanes + lane) * kVector, depth);
      const float4 four = *reinterpret_cast<const float4*>(stage + depth * kSize + position);
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
  }

 private:
  static constexpr int kVectors = kSize * kDepth / kVector / kSquareThreads;
  struct Place {
    int position, depth;
  };

  static __device__ Place place(int i) {
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (kAlongDepth) {  // a warp reads 64 bytes of each of eight rows
      const int piece = i * kWarps + thread / 32;
      return {piece % (kSize / 8) * 8 + thread % 32 / 4, (piece / (kSize / 8) * 4 + thread % 4) * kVector};
    } else {
      const int vector = i * kSquareThreads + thread;
      return {vector % (kSize / kVector) * kVector, vector / (kSize / kVector)};
    }
  }

  static __device__ int shifted(int position, int depth) {
    return kAlongDepth ? position ^ (depth / kVector % 4 * 8) : position;
  }

  float4 vectors_[kVectors];
};

__global__ void __launch_bounds__(kSquareThreads) square_product_kernel(const SquareProductParams p) {
  extern __shared__ float shared[];
  using A = Share<true, kRows>;
  using B = Share<false, kColumns>;
  constexpr int kSteps = kDepth / kWarps;  // of a warp, in a stage
  constexpr int kDown = kRows / kLanesDown, kAcross = kColumns / kLanesAcross;
  const int d = static_cast<int>(p.d), across = cuda::ceil_div(d, kColumns);
  const int row = static_cast<int>(blockIdx.x) / across * kRows;
  const int column = static_cast<int>(blockIdx.x) % across * kColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int down = lane / kLanesAcross, right = lane % kLanesAcross;

  A a;
  B b;
  a.load(p.a, d, row, 0);
  b.load(p.b, d, column, 0);
  float sum[kDown][kAcross] = {};
  const int stages = cuda::ceil_div(d, kDepth);
  for (int s = 0; s < stages; ++s) {
    float* stage = shared + s % 2 * kStageFloats;
    a.store(stage);
    b.store(stage + kRows * kDepth);
    __syncthreads();
    if (s + 1 < stages) {  // loaded while this stage is multiplied
      a.load(p.a, d, row, (s + 1) * kDepth);
      b.load(p.b, d, column, (s + 1) * kDepth);
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int depth = warp * kSteps + k;
      float u[kDown], v[kAcross];
      A::read<kLanesDown>(stage, depth, down, u);
      B::read<kLanesAcross>(stage + kRows * kDepth, depth, right, v);
#pragma unroll
      for (int i = 0; i < kDown; ++i)
#pragma unroll
        for (int j = 0; j < kAcross; ++j) sum[i][j] += u[i] * v[j];
    }
  }

  __syncthreads();
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int j = 0; j < kAcross; j += kVector) {
      const int r = (i / kVector * kLanesDown + down) * kVector + i % kVector;
      const int c = (j / kVector * kLanesAcross + right) * kVector;
      *reinterpret_cast<float4*>(shared + warp * kTileFloats + r * kColumns + c) =
          make_float4(sum[i][j], sum[i][j + 1], sum[i][j + 2], sum[i][j + 3]);
    }
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x) * kVector; at < kTileFloats; at += kSquareThreads * kVector) {
    float4 total = *reinterpret_cast<const float4*>(shared + at);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float4 more = *reinterpret_cast<const float4*>(shared + w * kTileFloats + at);
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    const int r = row + at / kColumns, c = column + at % kColumns;
    if (r < d && c < d) *reinterpret_cast<float4*>(p.c + int64_t{r} * d + c) = total;
  }
}

int64_t tiles_of(int64_t d) {
  return cuda::ceil_div<int64_t>(d, kRows) * cuda::ceil_div<int64_t>(d, kColumns);
}

}  // namespace

bool fits_square_product(int64_t d) {  // beyond a wave of tiles cuBLAS is faster
  return d % kVector == 0 && tiles_of(d) <= cuda::sm_count();
}

void launch_square_product(const SquareProductParams& params, cudaStream_t stream) {
  const auto kernel = square_product_kernel;
  PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(tiles_of(params.d)), kSquareThreads, kSharedBytes, stream>>>(params);
  PLAB_CHECK_LAUNCH();
}

}  // namespace plab::ops
