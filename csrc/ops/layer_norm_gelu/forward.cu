// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/forward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kWarpsPerBlock = 4;  // where each warp has its own row

/// Measured by benchmarks/layer_norm_gelu_sweep.py. fp32 has arithmetic to spare and does best with the
/// simplest scheme: one row a group, nothing prefetched, the wait for memory filled by other blocks. 16-bit
/// elements come twice as fast and pay for what each block does once: runs of rows, and in blocks the next
/// row prefetched.
template <class Element, class Group>
constexpr bool kPrefetch = sizeof(Element) == 2 && !Group::kIsWarp;
template <class Element>
constexpr int kWaves = sizeof(Element) == 2 ? 4 : 1 << 14;  // of blocks, where there are rows enough

/// Threads on a multiprocessor, as many as hold their rows in registers.
template <class Tile, class Group>
constexpr int resident_threads() {
  if (Tile::kAccess != Access::kExact) return Tile::kElements <= 8 ? 1024 : 768;
  const int row_registers = Tile::kVecs * 4 * (kPrefetch<typename Tile::Element, Group> ? 2 : 1);
  const bool light = row_registers <= 16 && (sizeof(typename Tile::Element) == 4 || Tile::kVecs == 1);
  return light && !Group::kIsWarp ? 1536 : 1024;  // 1024: two blocks of the longest rows
}

template <class Config>
void launch(const ForwardParams& params, int threads_per_row, cudaStream_t stream) {
  constexpr int kGroups = Config::Group::kIsWarp ? kWarpsPerBlock : 1;  // of a block
  const int threads = kGroups * threads_per_row;
  const int shared_bytes =
      WeightStore<typename Config::Tile, Config::kWeights>::shared_bytes(threads_per_row);
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) *
                           cuda::blocks_per_multiprocessor<forward_kernel<Config>>(threads, shared_bytes);
  const cuda::RowRuns runs =
      cuda::cut_rows(params.rows, resident * kGroups, kWaves<typename Config::Element>);
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
    launch<ForwardConfig<Tile, Group, resident_threads<Tile, Group>(), Weights::kCached,
                         kPrefetch<Element, Group>, kForm>>(params, plan.threads, stream);
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
