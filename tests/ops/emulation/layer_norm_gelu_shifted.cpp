// SPDX-License-Identifier: Apache-2.0
// Runs layer_norm_gelu's kernels for shifted rows on the CPU, as sm90/shifted.cuh plans them, in clusters of the size
// given; a line for each case, as layer_norm_gelu_problem.h writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/sm90/shifted.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

template <class Config, class Kernel>
void launch(const Shape& shape, int blocks, int64_t resident, Kernel&& kernel) {
  using Tile = typename Config::Tile;
  const int threads = sm90::shifted_threads(shape.cols, Tile::kVecSize, Tile::kVecs, blocks);
  const int period = sm90::shifted_period(shape.cols, Tile::kVecSize);
  const int64_t groups = sm90::shifted_groups(shape.rows, resident, period, 1);
  if (groups < shape.rows && groups * shape.cols % Tile::kVecSize != 0) std::abort();
  const RowOrder order{0, true, 0, 1.0f / static_cast<float>(shape.cols)};
  cuda::ptx::clear_dynamic_shared();
  on_cpu::launch(
      static_cast<unsigned>(groups * blocks), threads, [&] { kernel(order); }, blocks);
}

template <class Element>
void run(const char* name, const Shape& shape, int blocks, int64_t resident) {
  using Forward = sm90::ShiftedForward<Element>;
  using Backward = sm90::ShiftedBackward<Element>;
  Problem<Element> problem(shape);
  launch<Forward>(shape, blocks, resident,
                  [&](const RowOrder& order) { forward_kernel<Forward>(problem.forward, order); });
  const int64_t groups = sm90::shifted_groups(shape.rows, resident,
                                              sm90::shifted_period(shape.cols, cuda::kVecSize<Element>), 1);
  problem.make_workspace(groups);
  launch<Backward>(shape, blocks, resident,
                   [&](const RowOrder& order) { backward_kernel<Backward>(problem.backward, order); });
  problem.template add_partials<32>(groups);
  problem.report(name, GeluForm::kErf);
}

/// A group's rows start alike, or it has one; and every row has a group.
void check_groups() {
  for (int period = 1; period <= 8; period *= 2) {
    for (int64_t rows = 1; rows < 200; ++rows) {
      for (int64_t resident = 1; resident < 40; ++resident) {
        const int64_t groups = sm90::shifted_groups(rows, resident, period, 4);
        if (groups < 1 || groups > rows || (groups < rows && groups % period != 0)) std::abort();
      }
    }
  }
}

/// rows, columns, distance of rows, offset, (not used), mean, bias, first of each row; blocks of a cluster, clusters
/// at once.
void run_all() {
  using Bf16 = __nv_bfloat16;
  run<Bf16>("bf16 one row", {1, 1025, 1025, 0, 0, 0.5f, true}, 1, 8);
  run<Bf16>("bf16 1025 columns", {37, 1025, 1025, 0, 0, 0.5f, true}, 1, 8);
  run<Bf16>("bf16 a row each", {5, 1029, 1029, 0, 0, 0.5f, true}, 1, 8);
  run<Bf16>("bf16 far from zero, two passes", {17, 1033, 1033, 0, 0, 100, true}, 1, 9);
  run<Bf16>("bf16 whole vectors, one more than fit four warps", {9, 2056, 2056, 0, 0, 0.5f, true}, 1, 4);
  run<Bf16>("bf16 a cluster of two", {19, 2047, 2047, 0, 0, 0.5f, true}, 2, 8);
  run<Bf16>("bf16 a cluster of three, shifts of two", {9, 2050, 2050, 0, 0, 0.5f, false}, 3, 4);
  run<Bf16>("bf16 a cluster of five, the last warps without columns", {9, 2049, 2049, 0, 0, 0.5f, true}, 5,
            8);
  run<__half>("fp16 far from the first", {11, 1101, 1101, 0, 0, 20, true, 1000}, 1, 8);
  run<__half>("fp16 a cluster of two", {9, 1031, 1031, 0, 0, 0.5f, true}, 2, 8);
  run<float>("fp32 odd, no bias", {13, 1001, 1001, 0, 0, 0.5f, false}, 1, 4);
  run<float>("fp32 far from the first", {9, 771, 771, 0, 0, 20, true, 1000}, 1, 4);
  run<float>("fp32 a cluster of two", {9, 1030, 1030, 0, 0, 0.5f, true}, 2, 5);
  run<float>("fp32 a cluster of four, whole vectors", {5, 2052, 2052, 0, 0, 0.5f, true}, 4, 2);
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() {
  plab::ops::layer_norm_gelu::check_groups();
  plab::ops::layer_norm_gelu::run_all();
}
