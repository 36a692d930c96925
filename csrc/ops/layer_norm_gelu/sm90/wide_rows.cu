// SPDX-License-Identifier: Apache-2.0
// Rows that are too long for one block, as clusters of blocks: each has a part of the columns in its
// registers, and the row's sums travel through the blocks' shared memory. The kernels are those of
// forward.cuh and backward.cuh.
#include "ops/layer_norm_gelu/backward_launch.cuh"
#include "ops/layer_norm_gelu/forward_launch.cuh"
#include "ops/layer_norm_gelu/wide_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

/// Threads of each block where `blocks` share the row, or 0.
template <class Tile>
int threads_of_block(int64_t cols, int blocks) {
  if (cols % (Tile::kElements * cuda::kWarpSize * blocks) != 0) return 0;
  const int64_t threads = cols / (Tile::kElements * blocks);
  return threads <= kMaxThreadsPerRow ? static_cast<int>(threads) : 0;
}

/// Calls function(Tag<ClusterPairSum<n>>, threads) for the fewest blocks that do it; returns whether any did.
template <class Tile, class Function>
bool with_cluster(int64_t cols, Function&& function) {
  const auto try_blocks = [&]<int kBlocks>(Constant<kBlocks>) {
    const int threads = threads_of_block<Tile>(cols, kBlocks);
    return threads > 0 && function(Tag<cuda::ClusterPairSum<kBlocks>>{}, threads);
  };
  return try_blocks(Constant<2>{}) || try_blocks(Constant<4>{}) || try_blocks(Constant<8>{});
}

bool is_hopper() { return cuda::device_attribute<cudaDevAttrComputeCapabilityMajor>() == 9; }

template <class Element, GeluForm kForm, bool kResidual>
bool forward_typed(const ForwardParams& params, cudaStream_t stream) {
  using Tile = RowTile<Element, 32 / cuda::kVecSize<Element>, Access::kExact>;
  return with_cluster<Tile>(params.cols, [&]<class Group>(Tag<Group>, int threads) {
    return launch_forward_ring<Tile, Group, 512, 3, kForm, kResidual>(params, threads, stream);
  });
}

template <class Element, GeluForm kForm, bool kResidual>
int64_t backward_typed(const BackwardParams& params, bool launch, cudaStream_t stream) {
  using Tile = RowTile<Element, 16 / cuda::kVecSize<Element>, Access::kExact>;
  constexpr bool k16Bit = sizeof(Element) == 2;  // for fp32 there is no room for three rows
  int64_t units = 0;
  with_cluster<Tile>(params.cols, [&]<class Group>(Tag<Group>, int threads) {
    units = launch_backward_config<Tile, Group, 512, k16Bit ? 3 : 2, k16Bit, true, kForm, kResidual>(
        params, threads, launch, stream);
    return units > 0;
  });
  return units;
}

}  // namespace

bool launch_forward_wide(const ForwardParams& params, cudaStream_t stream) {
  if (!is_hopper()) return false;
  bool done = false;
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    done = params.residual != nullptr ? forward_typed<Element, kForm, true>(params, stream)
                                      : forward_typed<Element, kForm, false>(params, stream);
  });
  return done;
}

int64_t launch_backward_wide(const BackwardParams& params, bool launch, cudaStream_t stream) {
  if (!is_hopper()) return 0;
  int64_t units = 0;
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm kForm>() {
    units = params.dsum != nullptr ? backward_typed<Element, kForm, true>(params, launch, stream)
                                   : backward_typed<Element, kForm, false>(params, launch, stream);
  });
  return units;
}

}  // namespace plab::ops::layer_norm_gelu
