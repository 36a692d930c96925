// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/forward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kWarpsPerBlock = 4;  // where each warp has its own row
constexpr int kWaves = 4;          // of blocks, where there are rows enough

template <class Config>
void launch(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  constexpr int kGroups = Config::Group::kIsWarp ? kWarpsPerBlock : 1;  // of a block
  const int threads = kGroups * threads_per_row;
  const int shared_bytes =
      WeightStore<typename Config::Tile, Config::kWeights>::shared_bytes(threads_per_row);
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) *
                           cuda::blocks_per_multiprocessor<forward_kernel<Config>>(threads, shared_bytes);
  const cuda::RowRuns runs = cuda::cut_rows(params.rows, resident * kGroups, kWaves);
  const int blocks = static_cast<int>(cuda::ceil_div<int64_t>(runs.groups, kGroups));
  forward_kernel<Config><<<blocks, threads, shared_bytes, stream>>>(params, runs.rows_per_group);
  PLAB_CHECK_LAUNCH();
}

template <class Element, GeluForm kForm>
void launch_typed(const ForwardParams& params, cudaStream_t stream) {
  constexpr int kMaxVecs = 32 / cuda::kVecSize<Element>;  // 32 elements a thread, 16384 columns in registers
  const bool is_aligned = aligned({params.x, params.weight, params.bias, params.y},
                                  {params.x_row_stride, params.cols}, sizeof(Element));
  const RowPlan plan = plan_row(params.cols, cuda::kVecSize<Element>, kMaxVecs, is_aligned);
  if (plan.vecs == 0) return launch_forward_long<Element, kForm>(params, stream);
  dispatch_tile<Element, kMaxVecs>(plan, [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
    // The packed next row and the unpacked row take 4 registers a vector and 1 an element; bounds take some
    // more.
    constexpr int kBusy = Tile::kVecs * (4 + Tile::kVecSize) + (Tile::kAccess == Access::kExact ? 0 : 12);
    constexpr int kResidentThreads = kBusy <= 32 ? 1024 : kBusy <= 48 ? 768 : kBusy <= 64 ? 640 : 512;
    using Shared = ForwardConfig<Tile, Group, kResidentThreads, Weights::kShared, true, kForm>;
    if constexpr (Tile::kVecs == kMaxVecs && !Group::kIsWarp) {  // else they always fit
      constexpr int kStatic = sizeof(typename Group::Storage);
      if (WeightStore<Tile, Weights::kShared>::shared_bytes(plan.threads) + kStatic >
          cuda::max_shared_bytes()) {
        return launch<ForwardConfig<Tile, Group, kResidentThreads, Weights::kCached, true, kForm>>(
            params, plan.threads, stream);
      }
    }
    launch<Shared>(params, plan.threads, stream);
  });
}

}  // namespace

void launch_forward(const ForwardParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  dispatch_form(params.form, [&]<GeluForm kForm>(Constant<kForm>) {
    switch (params.element) {
      case ElementType::kBFloat16:
        return launch_typed<__nv_bfloat16, kForm>(params, stream);
      case ElementType::kFloat16:
        return launch_typed<__half, kForm>(params, stream);
      default:
        return launch_typed<float, kForm>(params, stream);
    }
  });
}

}  // namespace plab::ops::layer_norm_gelu
