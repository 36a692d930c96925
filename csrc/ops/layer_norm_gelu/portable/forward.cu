// SPDX-License-Identifier: Apache-2.0
// Which configuration of the forward kernels is used for which rows, as measured by
// benchmarks/layer_norm_gelu/layer_norm_gelu_sweep.py. The kernels are most of what nvcc compiles. So this file is
// compiled once per element type, PLAB_ELEMENT, and these compilations run in parallel.
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"
#include "ops/layer_norm_gelu/portable/long_rows.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

/// A row is loaded directly into registers. Each group has one row, so the hardware schedules rows in memory order.
/// A group prefetches into L2 the row of the group that starts when half of the running groups have ended. A group
/// has several short rows, because starting a block has a cost too.
template <class Tile, class Group, GeluForm kForm, Residual kResidual>
Plan plan_forward_direct(const ForwardParams& params, int threads_per_row) {
  constexpr int kResident = Tile::kElements > 48 ? 512 : Group::kIsWarp && Tile::kElements >= 32 ? 768 : 1024;
  constexpr int kAsManyAsRows = 1 << 24;  // waves
  using Config = ForwardConfig<Tile, Group, kResident, Weights::kCached, 0, kForm, kResidual>;
  return plan_grid(kernel_facts<Config, forward_direct_kernel<Config>>(threads_per_row), params.rows,
                   params.cols, Config::kOneRow ? kAsManyAsRows : 16, false);
}

template <class Element, GeluForm kForm, Residual kResidual>
Plan plan_forward_typed(const ForwardParams& params) {
  const RowSplit split = split_forward_row<Element>(params.cols, is_aligned<Element>(params));
  constexpr bool k16Bit = sizeof(Element) == 2;
  constexpr int k32Columns = 32 / cuda::kVecSize<Element>;
  const auto direct = [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) -> Plan {
    if constexpr (Tile::kAccess == Access::kExact && std::is_same_v<Group, cuda::WarpPairSum> &&
                  is_for_half_warp<Element>(Tile::kElements * cuda::kWarpSize)) {
      return {};  // not compiled: such rows never come to a whole warp
    } else {
      return plan_forward_direct<Tile, Group, kForm, kResidual>(params, split.threads);
    }
  };
  if (split.threads == kHalfWarp) {
    using HalfWarp = cuda::LanePairSum<kHalfWarp>;
    if constexpr (k16Bit) {
      if (split.vecs > k32Columns)
        return direct(Tag<RowTile<Element, k48Columns, Access::kExact, kHalfWarp>>{}, Tag<HalfWarp>{});
    }
    return direct(Tag<RowTile<Element, k32Columns, Access::kExact, kHalfWarp>>{}, Tag<HalfWarp>{});
  }
  if constexpr (k16Bit) {
    if (split.vecs > k32Columns)
      return direct(Tag<RowTile<Element, 2 * k32Columns, Access::kExact>>{}, Tag<cuda::BlockPairSum>{});
  }
  if (split.vecs == 0) return {};
  if constexpr (k16Bit) {
    return dispatch_tile<Element, 4, 3, 2, 1>(split, direct);
  } else {
    return dispatch_tile<Element, 8, 6, 4, 2, 1>(split, direct);
  }
}

}  // namespace

template <class Element>
Plan plan_forward(const ForwardParams& params) {
  return dispatch_form(params.form, params.residual != nullptr, [&]<GeluForm kForm, Residual kResidual>() {
    return plan_forward_typed<Element, kForm, kResidual>(params);
  });
}

template <class Element>
Plan plan_forward_long(const ForwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    return plan_long_grid(reinterpret_cast<const void*>(forward_long_kernel<Element, kForm>), params.rows,
                          kLongThreads, kLongBlocksPerSm);
  });
}

template Plan plan_forward<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_forward_long<PLAB_ELEMENT>(const ForwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::portable
