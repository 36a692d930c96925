// SPDX-License-Identifier: Apache-2.0
// The kernels of layer_norm_gelu in more configurations than the op uses, as a library for
// layer_norm_gelu_sweep.py. Compile with -DPLAB_SWEEP_ELEMENT=__nv_bfloat16 (or __half, float); times nothing
// itself. Needs sm_90.
#include <exception>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

using Element = PLAB_SWEEP_ELEMENT;
constexpr int kUnit = 8 / cuda::kVecSize<Element>;  // as many vectors as hold 8 elements

/// One configuration. Both return false where it cannot do such rows.
struct Entry {
  std::string name;
  bool (*forward)(const ForwardParams&, int waves, bool interleaved, cudaStream_t);
  bool (*backward)(const BackwardParams&, int waves, bool interleaved, cudaStream_t);
  int64_t (*partial_rows)(const BackwardParams&, int waves, bool interleaved);
};

using portable::fits;
using portable::kernel_facts;
using portable::plan_grid;

/// Without a kernel where Config cannot do such rows.
template <class Config, auto kKernel>
Plan plan(int64_t rows, int64_t cols, int resident_threads, int waves, bool interleaved) {
  using Tile = typename Config::Tile;
  constexpr int kBlocks = Config::Group::kBlocks, kRows = Config::kRowsAtATime;
  constexpr int kLanes = Config::Group::kLanes;
  if (cols % (Tile::kElements * kLanes * kBlocks) != 0) return {};
  const int64_t threads = cols / (Tile::kElements * kBlocks);
  if (Config::Group::kIsWarp ? threads != kLanes : (threads <= 32 || threads > kMaxThreadsPerRow)) return {};
  if (threads * kRows > resident_threads || !fits<Config>(static_cast<int>(threads))) return {};
  return plan_grid(kernel_facts<Config, kKernel>(static_cast<int>(threads)), rows, cols, waves, interleaved);
}

template <class Config>
constexpr auto kForwardKernel = [] {
  if constexpr (Config::kStages == 0)
    return &forward_direct_kernel<Config>;
  else
    return &forward_kernel<Config>;
}();

template <class Config>
bool run_forward(const ForwardParams& params, int waves, bool interleaved, cudaStream_t stream) {
  const Plan grid = plan<Config, kForwardKernel<Config>>(
      params.rows, params.cols, Config::kMaxBlock * Config::kMinBlocks, waves, interleaved);
  if (grid.kernel != nullptr) portable::launch(grid, params, stream);
  return grid.kernel != nullptr;
}

template <class Config>
Plan plan_backward(const BackwardParams& params, int waves, bool interleaved) {
  Plan grid = plan<Config, backward_kernel<Config>>(params.rows, params.cols, Config::kResidentThreads, waves,
                                                    interleaved);
  grid.workspace_rows = grid.blocks / Config::Group::kBlocks;
  return grid;
}

template <class Config>
bool run_backward(const BackwardParams& params, int waves, bool interleaved, cudaStream_t stream) {
  const Plan grid = plan_backward<Config>(params, waves, interleaved);
  if (grid.kernel == nullptr) return false;
  portable::launch(grid, params, stream);
  add_partials_kernel<Element, 32><<<static_cast<int>(cuda::ceil_div<int64_t>(2 * params.cols, 32)),
                                     params.cols <= kManyColumns ? 1024 : 256, 0, stream>>>(
      static_cast<const float*>(params.partial), grid.workspace_rows, params.cols,
      static_cast<Element*>(params.dweight), static_cast<Element*>(params.dbias));
  PLAB_CHECK_LAUNCH();
  return true;
}

template <class Group>
std::string name() {
  if (Group::kIsWarp) return Group::kLanes < 32 ? "half a warp" : "warp";
  if (std::is_same_v<Group, cuda::BlockPairSum>) return "block";
  return "cluster " + std::to_string(Group::kBlocks);
}
std::string name(Weights weights) {
  return weights == Weights::kShared      ? "shared"
         : weights == Weights::kRegisters ? "packed"
         : weights == Weights::kFloats    ? "floats"
                                          : "cached";
}

template <int kVecs, class Group, int kResident, Weights kWeights, int kStages>
void add_forward(std::vector<Entry>& entries) {
  using Tile = RowTile<Element, kVecs * kUnit, Access::kExact, Group::kLanes>;
  using Config = ForwardConfig<Tile, Group, kResident, kWeights, kStages, GeluForm::kErf>;
  entries.push_back({name<Group>() + ", " + std::to_string(8 * kVecs) + " columns, resident " +
                         std::to_string(kResident) + ", weights " + name(kWeights) + ", stages " +
                         std::to_string(kStages),
                     &run_forward<Config>, nullptr, nullptr});
}

template <int kVecs, class Group, int kResident, Weights kWeights, int kStages, bool kOverlap>
void add_backward(std::vector<Entry>& entries) {
  using Tile = RowTile<Element, kVecs * kUnit, Access::kExact>;
  using Config =
      BackwardConfig<Tile, Group, kResident, kWarpsPerBlock, kWeights, kStages, kOverlap, GeluForm::kErf>;
  entries.push_back({name<Group>() + ", " + std::to_string(8 * kVecs) + " columns, resident " +
                         std::to_string(kResident) + ", weights " + name(kWeights) + ", stages " +
                         std::to_string(kStages) + (kOverlap ? ", overlap" : ""),
                     nullptr, &run_backward<Config>,
                     [](const BackwardParams& p, int waves, bool interleaved) -> int64_t {
                       return plan_backward<Config>(p, waves, interleaved).workspace_rows;
                     }});
}

template <int kVecs, class Group>
void add_forward_family(std::vector<Entry>& entries) {
  using enum Weights;
  add_forward<kVecs, Group, 512, kFloats, 3>(entries);
  add_forward<kVecs, Group, 640, kFloats, 3>(entries);
  add_forward<kVecs, Group, 640, kFloats, 4>(entries);
  add_forward<kVecs, Group, 768, kRegisters, 3>(entries);
  add_forward<kVecs, Group, 768, kRegisters, 4>(entries);
  if constexpr (kVecs <= 2) add_forward<kVecs, Group, 1024, kFloats, 3>(entries);
}

template <int kVecs, class Group>
void add_direct_family(std::vector<Entry>& entries) {
  using enum Weights;
  add_forward<kVecs, Group, 768, kCached, 0>(entries);
  add_forward<kVecs, Group, 1024, kCached, 0>(entries);
  add_forward<kVecs, Group, 1536, kCached, 0>(entries);
  if constexpr (kVecs <= 2) add_forward<kVecs, Group, 2048, kCached, 0>(entries);
}

template <int kVecs, class Group>
void add_backward_family(std::vector<Entry>& entries) {
  using enum Weights;
  add_backward<kVecs, Group, 512, kShared, 3, true>(entries);
  add_backward<kVecs, Group, 640, kShared, 3, true>(entries);
  add_backward<kVecs, Group, 640, kShared, 2, false>(entries);
  add_backward<kVecs, Group, 768, kShared, 2, false>(entries);
  add_backward<kVecs, Group, 640, kShared, 3, false>(entries);
  add_backward<kVecs, Group, 640, kCached, 3, true>(entries);
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    using namespace cuda;
    using enum Weights;
    std::vector<Entry> list;
    add_forward_family<4, WarpPairSum>(list);
    add_forward_family<4, BlockPairSum>(list);
    add_forward_family<3, WarpPairSum>(list);
    add_forward_family<2, WarpPairSum>(list);
    add_forward<4, ClusterPairSum<1>, 512, kFloats, 3>(list);
    add_forward<4, ClusterPairSum<1>, 640, kFloats, 4>(list);
    add_forward<4, ClusterPairSum<2>, 512, kFloats, 3>(list);
    add_forward<4, ClusterPairSum<4>, 512, kFloats, 3>(list);
    add_direct_family<4, LanePairSum<16>>(list);
    add_forward<8, BlockPairSum, 512, kCached, 0>(list);
    add_forward<8, WarpPairSum, 512, kCached, 0>(list);
    add_direct_family<4, WarpPairSum>(list);
    add_direct_family<4, BlockPairSum>(list);
    add_direct_family<3, WarpPairSum>(list);
    add_direct_family<2, WarpPairSum>(list);
    add_direct_family<2, BlockPairSum>(list);
    add_direct_family<1, BlockPairSum>(list);
    add_backward_family<2, WarpPairSum>(list);
    add_backward_family<2, BlockPairSum>(list);
    add_backward<3, WarpPairSum, 512, kShared, 3, false>(list);
    add_backward<3, WarpPairSum, 512, kShared, 2, false>(list);
    add_backward<1, WarpPairSum, 1024, kShared, 3, true>(list);
    add_backward<1, BlockPairSum, 1024, kShared, 3, true>(list);
    add_backward<1, BlockPairSum, 768, kShared, 3, true>(list);
    add_backward<2, ClusterPairSum<1>, 512, kShared, 3, true>(list);
    add_backward<2, ClusterPairSum<2>, 512, kShared, 3, true>(list);
    add_backward<2, ClusterPairSum<2>, 512, kCached, 3, true>(list);
    add_backward<2, ClusterPairSum<4>, 512, kShared, 3, true>(list);
    add_backward<2, ClusterPairSum<4>, 640, kShared, 3, true>(list);
    add_backward<2, ClusterPairSum<4>, 640, kShared, 2, false>(list);
    add_backward<1, ClusterPairSum<4>, 1024, kShared, 3, true>(list);
    return list;
  }();
  return all;
}

thread_local std::string last_error;

/// Runs body; -1 and a text in last_error where it throws.
template <class Body>
int64_t guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

namespace op = plab::ops::layer_norm_gelu;

extern "C" {

int sweep_count() { return static_cast<int>(op::entries().size()); }
const char* sweep_name(int i) { return op::entries()[i].name.c_str(); }
int sweep_is_forward(int i) { return op::entries()[i].forward != nullptr; }
const char* sweep_error() { return op::last_error.c_str(); }

/// 1 launched, 0 not possible for these rows, -1 error. Rows are contiguous.
int64_t sweep_forward(int i, int waves, int interleaved, const void* x, const void* weight, const void* bias,
                      void* y, void* mean, void* rstd, int64_t rows, int64_t cols, void* stream) {
  op::ForwardParams params{};
  params.x = x, params.weight = weight, params.bias = bias, params.y = y, params.mean = mean,
  params.rstd = rstd;
  params.rows = rows, params.cols = cols, params.x_row_stride = cols, params.eps = 1e-5;
  return op::guarded([&]() -> int64_t {
    return op::entries()[i].forward(params, waves, interleaved != 0, static_cast<cudaStream_t>(stream));
  });
}

/// With partial = null: the rows of workspace it needs, 0 where not possible. Else as sweep_forward.
int64_t sweep_backward(int i, int waves, int interleaved, const void* dy, const void* x, const void* weight,
                       const void* bias, const void* mean, const void* rstd, void* dx, void* dweight,
                       void* dbias, void* partial, int64_t rows, int64_t cols, void* stream) {
  op::BackwardParams params{};
  params.dy = dy, params.x = x, params.weight = weight, params.bias = bias, params.mean = mean,
  params.rstd = rstd;
  params.dx = dx, params.dweight = dweight, params.dbias = dbias, params.partial = partial;
  params.rows = rows, params.cols = cols, params.x_row_stride = cols, params.dy_row_stride = cols;
  return op::guarded([&]() -> int64_t {
    const op::Entry& entry = op::entries()[i];
    if (partial == nullptr) return entry.partial_rows(params, waves, interleaved != 0);
    return entry.backward(params, waves, interleaved != 0, static_cast<cudaStream_t>(stream));
  });
}
}
