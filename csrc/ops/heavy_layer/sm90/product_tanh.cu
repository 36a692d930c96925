// SPDX-License-Identifier: Apache-2.0
// Y = tanh(X M + b), rows x d, for problems of about a wave of tiles. There a separate kernel for bias and tanh
// costs a fifth of the GEMM. Here bias and tanh are the epilogue of the GEMM.
//
// Mapping   a block makes a tile of 128 x 128: one warp copies (TMA), two warpgroups multiply 64 rows each.
//           A stage is 128 bytes of depth of both operands, a step of wgmma 32 of them, whatever the type.
// Bytes     2 rows d + d^2 elements.     Flops  2 rows d^2.     Roof  what one SM takes from L2.
// Contract  fuses_product() said yes; 16-byte aligned operands.
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma_tf32.cuh"
#include "cuda/vec.cuh"
#include "ops/device_types.cuh"
#include "ops/heavy_layer/sm90/matrix_map.h"
#include "ops/heavy_layer/sm90/sm90.h"
#include "ops/heavy_layer/sm90/store_pairs.cuh"
#include "ops/heavy_layer/tanh.cuh"

namespace plab::ops {

namespace {

using namespace cuda::ptx;

constexpr int kTile = 128, kRowBytes = 128, kStages = 7;
constexpr int kWarpgroup = 128, kConsumers = 2, kThreads = kConsumers * kWarpgroup + 32;
constexpr int kOperandBytes = kTile * kRowBytes, kStageBytes = 2 * kOperandBytes;
constexpr int kAlignment = 1024;  // of the swizzle's pattern
constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;

struct Maps {
  CUtensorMap x, m_transposed;
};

template <class Element>
__global__ void __launch_bounds__(kThreads, 1)
    product_tanh_kernel(const ProductTanhParams p, const __grid_constant__ Maps maps) {
  constexpr int kDepth = kRowBytes / static_cast<int>(sizeof(Element));  // elements of depth in a stage
  extern __shared__ char shared[];
  __shared__ uint64_t full[kStages], empty[kStages];
  __shared__ float bias[kTile];
  const uint32_t tiles =
      (static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + kAlignment - 1) & ~(kAlignment - 1);
  const auto barrier = [](uint64_t& b) { return static_cast<uint32_t>(__cvta_generic_to_shared(&b)); };
  const int warpgroup = static_cast<int>(threadIdx.x) / kWarpgroup;
  const int columns = static_cast<int>(cuda::ceil_div<int64_t>(p.d, kTile));
  const int64_t row0 = static_cast<int64_t>(blockIdx.x) / columns * kTile;
  const int column0 = static_cast<int>(blockIdx.x) % columns * kTile;
  const int steps = static_cast<int>(cuda::ceil_div<int64_t>(p.d, kDepth));

  if (threadIdx.x == kConsumers * kWarpgroup) {
    prefetch_tensor_map(&maps.x);
    prefetch_tensor_map(&maps.m_transposed);
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(barrier(full[s]), 1);
      mbarrier_init(barrier(empty[s]), kConsumers);
    }
    fence_barrier_init();
  }
  __syncthreads();
  wait_for_previous_grid();

  if (warpgroup == kConsumers) {
    if (threadIdx.x % 32 != 0) return;
    for (int k = 0; k < steps; ++k) {
      const int s = k % kStages;
      if (k >= kStages) mbarrier_wait(barrier(empty[s]), (k / kStages - 1) & 1);
      const uint32_t stage = tiles + s * kStageBytes;
      mbarrier_arrive_expect_tx(barrier(full[s]), kStageBytes);
      tma_load_2d(stage, &maps.x, barrier(full[s]), k * kDepth, static_cast<int>(row0));
      tma_load_2d(stage + kOperandBytes, &maps.m_transposed, barrier(full[s]), k * kDepth, column0);
    }
    return;
  }

  if (threadIdx.x < kTile) {  // under the first copies
    const int column = column0 + static_cast<int>(threadIdx.x);
    bias[threadIdx.x] = column < p.d ? cuda::to_float(static_cast<const Element*>(p.b)[column]) : 0.0f;
  }
  named_barrier_sync(1, kConsumers * kWarpgroup);

  float sum[kTile / 2];
  for (int k = 0; k < steps; ++k) {
    const int s = k % kStages;
    const uint32_t x = tiles + s * kStageBytes + warpgroup * 64 * kRowBytes,
                   m = tiles + s * kStageBytes + kOperandBytes;
    mbarrier_wait(barrier(full[s]), k / kStages & 1);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kRowBytes / 32; ++step)
      Wgmma<Element, kTile, false, false>::ss(sum, descriptor_k_major(x + step * 32),
                                              descriptor_k_major(m + step * 32), k > 0 || step > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0 && threadIdx.x % kWarpgroup == 0) mbarrier_arrive(barrier(empty[(k - 1) % kStages]));
  }
  wgmma_wait<0>();
  keep(sum);

  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
  auto* y = static_cast<Element*>(p.y);
#pragma unroll
  for (int group = 0; group < kTile / 8; group += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = row0 + warpgroup * 64 + warp * 16 + lane / 4 + 8 * half;
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        v[i] = fast_tanh<Element>(sum[4 * (group + i / 2) + 2 * half + i % 2] +
                                  bias[8 * (group + i / 2) + 2 * (lane % 4) + i % 2]);
      store_pairs(y + row * p.d, column0 + 8 * group, p.d, row < p.rows, v);
    }
  }
}

}  // namespace

bool fuses_product(int64_t rows, int64_t d, ElementType type, bool tf32) {
  const int64_t bytes = d * (type == ElementType::kFloat32 ? 4 : 2);
  const int64_t tiles = cuda::ceil_div<int64_t>(rows, kTile) * cuda::ceil_div<int64_t>(d, kTile);
  return (type != ElementType::kFloat32 || tf32) && bytes % 16 == 0 && tiles <= cuda::sm_count() &&
         cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

void launch_product_tanh(const ProductTanhParams& params, cudaStream_t stream) {
  const Maps maps{matrix_map(params.x, params.rows, params.d, params.type, kTile),
                  matrix_map(params.m_transposed, params.d, params.d, params.type, kTile)};
  const int64_t blocks =
      cuda::ceil_div<int64_t>(params.rows, kTile) * cuda::ceil_div<int64_t>(params.d, kTile);
  dispatch_device(params.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    const auto kernel = product_tanh_kernel<Element>;
    PLAB_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(blocks);
    config.blockDim = kThreads;
    config.dynamicSmemBytes = kSharedBytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = params.follows_fold ? 1 : 0;
    PLAB_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, maps));
  });
}

}  // namespace plab::ops
