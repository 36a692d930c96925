// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/forward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kWarpsPerBlock = 4;  // where each warp has its own row

template <class Config>
void launch(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  constexpr bool kWarp = Config::Group::kIsWarp;
  const int threads = kWarp ? kWarpsPerBlock * cuda::kWarpSize : threads_per_row;
  const int64_t tasks = kWarp ? cuda::ceil_div<int64_t>(params.rows, kWarpsPerBlock) : params.rows;
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) *
                           cuda::blocks_per_multiprocessor<forward_kernel<Config>>(threads, 0);
  forward_kernel<Config><<<cuda::balanced_grid(tasks, resident), threads, 0, stream>>>(params);
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
    // A thread's packed weights and bias, packed next row and unpacked row take 3 registers for 4 bytes and 1
    // an element.
    constexpr int kBusy = Tile::kVecs * (3 * 4 + Tile::kVecSize);
    constexpr Weights kWeights = kBusy <= 80 ? Weights::kRegisters : Weights::kCached;
    constexpr int kResidentThreads = kBusy <= 40 ? 1024 : kBusy <= 60 ? 768 : kBusy <= 80 ? 640 : 512;
    launch<ForwardConfig<Tile, Group, kResidentThreads, kWeights, kForm>>(params, plan.threads, stream);
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
