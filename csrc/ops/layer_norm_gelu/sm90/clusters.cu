// SPDX-License-Identifier: Apache-2.0
// Kernels whose blocks work together as a cluster.
//
// Long rows: each block has a part of the columns, and the row's sums travel through the blocks' shared
// memory. The kernels are those of portable/forward.cuh and backward.cuh. Shifted rows (shifted.cuh): clusters of 1 to
// 16 blocks.
//
// A few rows, backward: a single kernel. Only latency counts here, and a second kernel for the sums over rows
// would cost a third of it.
//
// Mapping   the grid is one cluster. Each block has a row in registers. Its contributions to dW and dB are in
//           the block's shared memory, where the other blocks of the cluster read them. Each block adds a
//           part of the columns over all blocks, in block order.
// Bytes     as backward.cuh, and 8 d per block through shared memory.
// Contract  layer_norm_gelu.h; rows start at 16 bytes, and the vectors of the block's threads are the row; but for
//           shifted rows.
//
// Compiled once per element type, like portable/forward.cu.
#include "cuda/launch.h"
#include "cuda/math.cuh"
#include "cuda/pair_sum.cuh"
#include "cuda/ptx/cluster.cuh"
#include "ops/device_types.cuh"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/sm90/shifted.cuh"
#include "ops/layer_norm_gelu/sm90/sm90.h"

namespace plab::ops::layer_norm_gelu::sm90 {
namespace {

using portable::Constant;
using portable::is_aligned;
using portable::RowSplit;

constexpr int kMaxFewRows =
    8;  // blocks of a cluster, on every GPU that has them; two rows a block are too slow

template <class Tile, GeluForm kForm, Residual kResidual>
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
  with_residual<kResidual>(params.dsum, [&] { load(params.dsum, row, params.dsum_row_stride, dsum); });
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
      with_residual<kResidual>(params.dsum, [&] { f[j] += dsum[i][j]; });
    }
    tile.store_vec(dx, i, f);
  }
  cuda::ptx::cluster_wait();
  for (int quad = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); quad < 2 * quads;
       quad += static_cast<int>(gridDim.x * blockDim.x)) {
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared + quad));
    float4 total = {};
#pragma unroll
    for (unsigned block = 0; block < kMaxFewRows; ++block) {
      if (block >= gridDim.x) break;
      const float4 part = cuda::ptx::cluster_load_4(cuda::ptx::cluster_address(address, block));
      total.x += part.x, total.y += part.y, total.z += part.z, total.w += part.w;
    }
    auto* out = static_cast<Element*>(quad < quads ? params.dweight : params.dbias) +
                (quad < quads ? quad : quad - quads) * 4;
    out[0] = cuda::from_float<Element>(total.x), out[1] = cuda::from_float<Element>(total.y);
    out[2] = cuda::from_float<Element>(total.z), out[3] = cuda::from_float<Element>(total.w);
  }
  cuda::ptx::cluster_sync();  // other blocks may still read this block's shared memory
}

/// Threads of each block where `blocks` share the row, or 0.
template <class Tile>
int threads_of_block(int64_t cols, int blocks) {
  if (cols % (Tile::kElements * cuda::kWarpSize * blocks) != 0) return 0;
  const int64_t threads = cols / (Tile::kElements * blocks);
  return threads <= kMaxThreadsPerRow ? static_cast<int>(threads) : 0;
}

/// function(Tag<ClusterPairSum<n>>, threads) for the fewest blocks for which that has a kernel.
template <class Tile, class Function>
Plan with_cluster(int64_t cols, Function&& function) {
  Plan plan;
  const auto try_blocks = [&]<int kBlocks>(Constant<kBlocks>) {
    const int threads = threads_of_block<Tile>(cols, kBlocks);
    if (threads > 0) plan = function(Tag<cuda::ClusterPairSum<kBlocks>>{}, threads);
    return plan.kernel != nullptr;
  };
  static_cast<void>(try_blocks(Constant<2>{}) || try_blocks(Constant<4>{}) || try_blocks(Constant<8>{}));
  return plan;
}

/// A thread's weights and biases are in registers, in fp32: 64 of 128 for 32 columns. The rows come through
/// shared memory.
template <class Element, GeluForm kForm, Residual kResidual>
Plan plan_forward_long(const ForwardParams& params) {
  using Tile = RowTile<Element, 32 / cuda::kVecSize<Element>, Access::kExact>;
  return with_cluster<Tile>(params.cols, [&]<class Group>(Tag<Group>, int threads) -> Plan {
    using Config = ForwardConfig<Tile, Group, 512, Weights::kFloats, 3, kForm, kResidual>;
    const bool has_residual = params.residual != nullptr;
    if (!portable::fits<Config>(threads, has_residual)) return {};
    const bool one_block_each = threads == kMaxThreadsPerRow;  // runs of rows are better then
    return portable::plan_grid(portable::kernel_facts<Config, forward_kernel<Config>>(threads, has_residual),
                               params.rows, params.cols, one_block_each ? 1 : 4, !one_block_each);
  });
}

/// With fp32, shared memory has no room for three rows.
template <class Tile, class Group, GeluForm kForm, Residual kResidual,
          bool k16Bit = sizeof(typename Tile::Element) == 2>
using LongBackward = BackwardConfig<Tile, Group, 512, kWarpsPerBlock, Weights::kShared, k16Bit ? 3 : 2,
                                    k16Bit, kForm, kResidual>;

template <class Element, GeluForm kForm, Residual kResidual>
Plan plan_backward_in_clusters(const BackwardParams& params) {
  using Tile = RowTile<Element, 16 / cuda::kVecSize<Element>, Access::kExact>;
  return with_cluster<Tile>(params.cols, [&]<class Group>(Tag<Group>, int threads) {
    using Config = LongBackward<Tile, Group, kForm, kResidual>;
    return portable::plan_backward_grid<Config, backward_kernel<Config>>(params, threads, true);
  });
}

template <class Tile, GeluForm kForm, Residual kResidual>
Plan plan_backward_few(const BackwardParams& params, int threads) {
  constexpr auto kKernel = backward_few_kernel<Tile, kForm, kResidual>;
  Plan plan;
  plan.kernel = reinterpret_cast<const void*>(kKernel);
  plan.blocks = params.rows;
  plan.cluster = static_cast<int>(params.rows);
  plan.threads = threads;
  plan.shared_bytes = static_cast<int>(2 * params.cols * sizeof(float));
  plan.order.inverse_cols = 1.0f / static_cast<float>(params.cols);
  plan.argument = Plan::Argument::kInverseCols;
  // Lets the kernel have that much shared memory.
  static_cast<void>(cuda::blocks_per_sm<kKernel>(threads, plan.shared_bytes));
  return plan;
}

template <class Element, GeluForm kForm, Residual kResidual>
Plan plan_backward_typed(const BackwardParams& params) {
  if (!is_aligned<Element>(params)) return {};
  const RowSplit split = portable::split_backward_row<Element>(params.rows, params.cols, true);
  if (params.rows <= kMaxFewRows && split.access == Access::kExact && split.vecs <= 2) {
    const auto with = [&]<int kVecs>(Constant<kVecs>) {
      return plan_backward_few<RowTile<Element, kVecs, Access::kExact>, kForm, kResidual>(params,
                                                                                          split.threads);
    };
    return split.vecs == 1 ? with(Constant<1>{}) : with(Constant<2>{});
  }
  // Of 16-bit rows, two blocks with 256 threads each are better than one with 512.
  const bool is_better =
      sizeof(Element) == 2 && split.threads == kMaxThreadsPerRow && params.rows > kMaxFewRows;
  return is_better ? plan_backward_in_clusters<Element, kForm, kResidual>(params) : Plan{};
}

bool has_clusters() { return cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9; }

/// function.operator()<kForm, kResidual>() on a GPU that has clusters.
template <class Function>
Plan dispatch(GeluForm form, bool has_residual, Function&& function) {
  if (!has_clusters()) return {};
  return portable::dispatch_form(form, has_residual, function);
}

}  // namespace

template <class Element>
Plan plan_forward(const ForwardParams& params) {
  return dispatch(params.form, params.residual != nullptr, [&]<GeluForm kForm, Residual kResidual>() {
    return is_aligned<Element>(params) ? plan_forward_long<Element, kForm, kResidual>(params) : Plan{};
  });
}

template <class Element>
Plan plan_backward(const BackwardParams& params) {
  return dispatch(params.form, params.dsum != nullptr, [&]<GeluForm kForm, Residual kResidual>() {
    return plan_backward_typed<Element, kForm, kResidual>(params);
  });
}

template <class Element>
Plan plan_backward_long(const BackwardParams& params) {
  return dispatch(params.form, params.dsum != nullptr, [&]<GeluForm kForm, Residual kResidual>() {
    return is_aligned<Element>(params) ? plan_backward_in_clusters<Element, kForm, kResidual>(params)
                                       : Plan{};
  });
}

template <class Element>
Plan plan_forward_shifted(const ForwardParams& params) {
  using Config = ShiftedForward<Element>;
  if (params.form != GeluForm::kErf || !portable::is_packable<Element>(params) || !has_clusters()) return {};
  return plan_shifted<Config, forward_kernel<Config>>(params, 4);
}

template <class Element>
Plan plan_backward_shifted(const BackwardParams& params) {
  using Config = ShiftedBackward<Element>;
  if (params.form != GeluForm::kErf || !portable::is_packable<Element>(params) || !has_clusters()) return {};
  return plan_shifted<Config, backward_kernel<Config>>(params, 4);
}

template Plan plan_forward_shifted<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_backward_shifted<PLAB_ELEMENT>(const BackwardParams& params);
template Plan plan_forward<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_backward<PLAB_ELEMENT>(const BackwardParams& params);
template Plan plan_backward_long<PLAB_ELEMENT>(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::sm90
