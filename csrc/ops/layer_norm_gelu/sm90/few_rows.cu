// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward of a few rows in one kernel: latency is all that counts, and a second kernel for
// the sums over rows would cost a third of it.
//
// Mapping   a cluster is the whole grid; each of its blocks has a row, straight in registers. What dW and dB
//           get from it waits in the block's shared memory, where the blocks of the cluster read it: each
//           adds a part of the columns over all blocks, in their order.
// Bytes     as backward.cuh, and 8 d per block through shared memory.
// Contract  layer_norm_gelu.h; rows start at 16 bytes, and the vectors of the block's threads are the row.
#include "cuda/launch.h"
#include "cuda/math.cuh"
#include "cuda/pair_sum.cuh"
#include "cuda/ptx/cluster.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"
#include "ops/layer_norm_gelu/wide_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kMaxRows = 8;  // blocks of a cluster, on every GPU that has them; two rows a block are too slow

template <class Tile, GeluForm kForm, bool kResidual>
__global__ void __launch_bounds__(kMaxThreadsPerRow)
    backward_few_kernel(const __grid_constant__ BackwardParams params, float inverse_cols) {
  using Element = typename Tile::Element;
  using Floats = typename Tile::Floats;
  static __shared__ cuda::BlockPairSum::Storage storage;
  extern __shared__ float4 shared[];
  cuda::BlockPairSum group(storage);
  const Tile tile(static_cast<int>(params.cols), group.rank(), group.size());
  const auto load = [&](const void* rows, int64_t row, int64_t stride, Floats& floats) {
    typename Tile::Packed packed;
    tile.load(static_cast<const Element*>(rows) + row * stride, packed);
    Tile::unpack(packed, floats);
  };
  const int64_t row = blockIdx.x;
  Floats weight, bias = {}, x, dh, dweight;
  load(params.x, row, params.x_row_stride, x);
  load(params.dy, row, params.dy_row_stride, dh);
  load(params.weight, 0, 0, weight);
  if (params.bias != nullptr) load(params.bias, 0, 0, bias);
  [[maybe_unused]] Floats dsum;
  if constexpr (kResidual) load(params.dsum, row, params.dsum_row_stride, dsum);
  const float mean = __ldg(static_cast<const float*>(params.mean) + row);
  const float rstd = __ldg(static_cast<const float*>(params.rstd) + row);
  Floats& dbias = bias;
  float sum = 0.0f, sum_h = 0.0f;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      const float h = (x[i][j] - mean) * rstd;
      const float z = fmaf(h, weight[i][j], bias[i][j]);
      const float dz = dh[i][j] * cuda::gelu_derivative<Element, kForm>(z);
      dweight[i][j] = dz * h;
      dbias[i][j] = dz;
      x[i][j] = h;
      dh[i][j] = dz * weight[i][j];
      sum += dh[i][j];
      sum_h = fmaf(dh[i][j], h, sum_h);
    }
  }
  const auto ticket = group.post(cuda::warp_pair_sum(sum, sum_h));
  const int quads = static_cast<int>(params.cols) / 4;  // of dweight's sums; dbias' follow
  const auto put = [&](const Floats& sums, float4* row) {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; j += 4)
        row[tile.column(i, j) / 4] = make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
    }
  };
  put(dweight, shared);
  put(dbias, shared + quads);
  group.collect(ticket, sum, sum_h);
  cuda::ptx::cluster_arrive();
  const float shift = -sum * inverse_cols, slope = -sum_h * inverse_cols;
  Element* dx = static_cast<Element*>(params.dx) + row * params.cols;
#pragma unroll
  for (int i = 0; i < Tile::kVecs; ++i) {
    float f[Tile::kVecSize];
#pragma unroll
    for (int j = 0; j < Tile::kVecSize; ++j) {
      f[j] = rstd * (fmaf(x[i][j], slope, dh[i][j]) + shift);
      if constexpr (kResidual) f[j] += dsum[i][j];
    }
    tile.store_vec(dx, i, f);
  }
  cuda::ptx::cluster_wait();
  for (int quad = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); quad < 2 * quads;
       quad += static_cast<int>(gridDim.x * blockDim.x)) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared + quad));
    float4 total = {};
#pragma unroll
    for (unsigned block = 0; block < kMaxRows; ++block) {
      if (block >= gridDim.x) break;
      const float4 part = cuda::ptx::cluster_load_4(cuda::ptx::cluster_address(address, block));
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    auto* out = static_cast<Element*>(quad < quads ? params.dweight : params.dbias) +
                (quad < quads ? quad : quad - quads) * 4;
    out[0] = cuda::from_float<Element>(total.x), out[1] = cuda::from_float<Element>(total.y);
    out[2] = cuda::from_float<Element>(total.z), out[3] = cuda::from_float<Element>(total.w);
  }
  cuda::ptx::cluster_sync();  // others may still read from here
}

template <class Tile, GeluForm kForm, bool kResidual>
void launch_few(const BackwardParams& params, int threads, cudaStream_t stream) {
  const auto kernel = backward_few_kernel<Tile, kForm, kResidual>;
  const int shared_bytes = static_cast<int>(2 * params.cols * sizeof(float));
  static_cast<void>(cuda::blocks_per_multiprocessor<backward_few_kernel<Tile, kForm, kResidual>>(
      threads, shared_bytes));  // lets the kernel have that much
  const auto blocks = static_cast<unsigned>(params.rows);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  PLAB_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, 1.0f / static_cast<float>(params.cols)));
}

}  // namespace

bool launch_backward_few(const BackwardParams& params, bool launch, cudaStream_t stream) {
  if (params.rows < 1 || params.rows > kMaxRows) return false;
  if (cuda::device_attribute<cudaDevAttrComputeCapabilityMajor>() != 9) return false;
  bool done = false;
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    const bool is_aligned = aligned(
        {params.dy, params.x, params.weight, params.bias, params.dx, params.dsum},
        {params.dy_row_stride, params.x_row_stride, params.dsum_row_stride, params.cols}, sizeof(Element));
    const RowPlan plan = plan_row(params.cols, cuda::kVecSize<Element>, {1, 2}, is_aligned);
    if (plan.access != Access::kExact) return;
    done = true;
    if (!launch) return;
    const auto with = [&]<int kVecs>(Constant<kVecs>) {
      using Tile = RowTile<Element, kVecs, Access::kExact>;
      if (params.dsum != nullptr) {
        launch_few<Tile, kForm, true>(params, plan.threads, stream);
      } else {
        launch_few<Tile, kForm, false>(params, plan.threads, stream);
      }
    };
    if (plan.vecs == 1) {
      with(Constant<1>{});
    } else {
      with(Constant<2>{});
    }
  });
  return done;
}

}  // namespace plab::ops::layer_norm_gelu
