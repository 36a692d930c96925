// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/backward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int kWarpsPerBlock = 4;  // where each warp has its own row

/// Calls function(Tag<Config>, threads per row), or long_rows() where the row does not fit registers.
template <class Element, GeluForm kForm, class Function, class LongRows>
void dispatch_config(const BackwardParams& params, Function&& function, LongRows&& long_rows) {
  constexpr int kMaxVecs =
      16 / cuda::kVecSize<Element>;  // with both sums a thread holds six floats per element
  const bool is_aligned = aligned({params.dy, params.x, params.weight, params.bias, params.dx},
                                  {params.dy_row_stride, params.x_row_stride, params.cols}, sizeof(Element));
  const RowPlan plan = plan_row(params.cols, cuda::kVecSize<Element>, kMaxVecs, is_aligned);
  if (plan.vecs == 0) return long_rows();
  dispatch_tile<Element, kMaxVecs>(plan, [&]<class Tile, class Group>(Tag<Tile>, Tag<Group>) {
    // Packed next rows of X and dY: 8 registers a vector. Unpacked rows and the two sums: 4 an element.
    constexpr int kBusy = Tile::kVecs * (2 * 4 + 4 * Tile::kVecSize);
    constexpr Weights kWeights = kBusy <= 80 ? Weights::kRegisters : Weights::kCached;
    constexpr int kResidentThreads = kBusy <= 24 ? 1024 : kBusy <= 40 ? 640 : 512;
    function(Tag<BackwardConfig<Tile, Group, kResidentThreads, kWarpsPerBlock, kWeights, kForm>>{},
             plan.threads);
  });
}

template <class Config>
int block_threads(int threads_per_row) {
  return Config::Group::kIsWarp ? Config::kWarps * cuda::kWarpSize : threads_per_row;
}

template <class Config>
int grid_blocks(int64_t rows, int threads_per_row) {
  const int64_t tasks = Config::Group::kIsWarp ? cuda::ceil_div<int64_t>(rows, Config::kWarps) : rows;
  const int64_t resident =
      static_cast<int64_t>(cuda::multiprocessors()) *
      cuda::blocks_per_multiprocessor<backward_kernel<Config>>(block_threads<Config>(threads_per_row), 0);
  return cuda::balanced_grid(tasks, resident);
}

template <class Element, GeluForm kForm>
void launch_typed(const BackwardParams& params, cudaStream_t stream) {
  if (params.rows > 0) {
    dispatch_config<Element, kForm>(
        params,
        [&]<class Config>(Tag<Config>, int threads_per_row) {
          const int blocks = grid_blocks<Config>(params.rows, threads_per_row);
          backward_kernel<Config><<<blocks, block_threads<Config>(threads_per_row), 0, stream>>>(params);
          PLAB_CHECK_LAUNCH();
        },
        [&] { launch_backward_long<Element, kForm>(params, stream); });
  }
  // Without rows this writes the zeros that an empty sum is.
  add_partials_kernel<Element><<<cuda::ceil_div<int64_t>(2 * params.cols, 32), 1024, 0, stream>>>(
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
        count = grid_blocks<Config>(params.rows, threads_per_row);
      },
      [&] { count = backward_long_blocks(params.rows); });
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
