// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/backward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kWarpsPerBlock = 4;  // where each warp has its own row

/// A thread holds 16 elements where the sums are in registers: both rows and both sums take 6 registers for 4
/// bytes of x. Rows too long for that have their sums in shared memory and 32 elements a thread.
template <class Element>
constexpr int kVecsWithSums = 16 / cuda::kVecSize<Element>;
template <class Element>
constexpr int kVecsWithoutSums = 32 / cuda::kVecSize<Element>;

/// Calls function(Tag<Config>, threads per row), or long_rows() where the row does not fit a block.
template <class Element, GeluForm kForm, class Function, class LongRows>
void dispatch_config(const BackwardParams& params, Function&& function, LongRows&& long_rows) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  const bool is_aligned = aligned({params.dy, params.x, params.weight, params.bias, params.dx},
                                  {params.dy_row_stride, params.x_row_stride, params.cols}, sizeof(Element));
  const RowPlan plan = plan_row(params.cols, kVecSize, kVecsWithSums<Element>, is_aligned);
  if (plan.vecs > 0) {
    return dispatch_tile<Element, kVecsWithSums<Element>>(
        plan, [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
          // Packed next rows of X and dY: 8 registers a vector. Unpacked rows and the two sums: 4 an element.
          constexpr int kBusy = Tile::kVecs * (2 * 4 + 4 * Tile::kVecSize);
          constexpr int kResidentThreads = kBusy <= 24 ? 1024 : kBusy <= 40 ? 640 : 512;
          function(Tag<BackwardConfig<Tile, Group, kResidentThreads, kWarpsPerBlock, Weights::kShared,
                                      Sums::kRegisters, kForm>>{},
                   plan.threads);
        });
  }
  const RowPlan wide = plan_row(params.cols, kVecSize, kVecsWithoutSums<Element>, is_aligned);
  if (wide.vecs == kVecsWithoutSums<Element> && wide.access == Access::kExact) {
    // Beside the sums there is shared memory for both next rows of 16-bit elements, or for one of fp32.
    constexpr Ahead kAheadX = sizeof(Element) == 2 ? Ahead::kShared : Ahead::kRegisters;
    using Config =
        BackwardConfig<RowTile<Element, kVecsWithoutSums<Element>, Access::kExact>, cuda::BlockGroup,
                       kMaxThreadsPerRow, 1, Weights::kCached, Sums::kShared, kForm, kAheadX, Ahead::kShared>;
    const int needed =
        Config::shared_bytes(wide.threads) + static_cast<int>(sizeof(cuda::BlockGroup::Storage));
    if (needed <= cuda::max_shared_bytes()) return function(Tag<Config>{}, wide.threads);
  }
  long_rows();
}

struct Launch {
  int blocks;
  int threads;
  int shared_bytes;
  int64_t rows_per_group;
};

template <class Config>
Launch plan_launch(int64_t rows, int threads_per_row) {
  constexpr int kGroups = Config::Group::kIsWarp ? Config::kWarps : 1;  // of a block
  const int threads = kGroups * threads_per_row, shared_bytes = Config::shared_bytes(threads_per_row);
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) *
                           cuda::blocks_per_multiprocessor<backward_kernel<Config>>(threads, shared_bytes);
  const cuda::RowRuns runs = cuda::cut_rows(rows, resident * kGroups, 1);
  return {static_cast<int>(cuda::ceil_div<int64_t>(runs.groups, kGroups)), threads, shared_bytes,
          runs.rows_per_group};
}

template <class Element, GeluForm kForm>
void launch_typed(const BackwardParams& params, cudaStream_t stream) {
  if (params.rows > 0) {
    dispatch_config<Element, kForm>(
        params,
        [&]<class Config>(Tag<Config>, int threads_per_row) {
          const Launch plan = plan_launch<Config>(params.rows, threads_per_row);
          backward_kernel<Config>
              <<<plan.blocks, plan.threads, plan.shared_bytes, stream>>>(params, plan.rows_per_group);
          PLAB_CHECK_LAUNCH();
        },
        [&] { launch_backward_long<Element, kForm>(params, stream); });
  }
  // Without rows this writes the zeros that an empty sum is.
  const int blocks = static_cast<int>(cuda::ceil_div<int64_t>(2 * params.cols, 32));
  add_partials_kernel<Element><<<blocks, 1024, 0, stream>>>(
      static_cast<const float*>(params.partial), params.partial_rows, params.cols,
      static_cast<Element*>(params.dweight), static_cast<Element*>(params.dbias));
  PLAB_CHECK_LAUNCH();
}

template <class Element, GeluForm kForm>
int64_t count_partial_rows(const BackwardParams& params) {
  int64_t count = 0;
  dispatch_config<Element, kForm>(
      params,
      [&]<class Config>(Tag<Config>, int threads_per_row) {
        count = plan_launch<Config>(params.rows, threads_per_row).blocks;
      },
      [&] { count = long_blocks(params.rows); });
  return count;
}

/// Calls function.operator()<Element, kForm>().
template <class Function>
void dispatch(const BackwardParams& params, Function&& function) {
  dispatch_form(params.form, [&]<GeluForm kForm>(Constant<kForm>) {
    switch (params.element) {
      case ElementType::kBFloat16:
        return function.template operator()<__nv_bfloat16, kForm>();
      case ElementType::kFloat16:
        return function.template operator()<__half, kForm>();
      default:
        return function.template operator()<float, kForm>();
    }
  });
}

}  // namespace

int64_t backward_partial_rows_cuda(const BackwardParams& params) {
  if (params.rows == 0) return 0;
  int64_t count = 0;
  dispatch(params,
           [&]<class Element, GeluForm kForm>() { count = count_partial_rows<Element, kForm>(params); });
  return count;
}

void launch_backward(const BackwardParams& params, cudaStream_t stream) {
  dispatch(params, [&]<class Element, GeluForm kForm>() { launch_typed<Element, kForm>(params, stream); });
}

}  // namespace plab::ops::layer_norm_gelu
