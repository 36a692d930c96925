// SPDX-License-Identifier: Apache-2.0
// Runs layer_norm_gelu's step by step kernels on the CPU, in blocks and in clusters; a line for each case, as
// layer_norm_gelu_problem.h writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/portable/backward_steps.cuh"
#include "ops/layer_norm_gelu/portable/forward_steps.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

/// How rows are dealt to teams.
struct Dealt {
  unsigned threads, blocks;  // of a block, of a team
  int bundles;               // of a packed step; 0: shifted
  int64_t teams;
  bool interleaved;
  int lanes_log2;
};

template <class Element, GeluForm kForm, bool kHopper, bool kResidual = false>
void run(const std::string& name, const Shape& shape, const Dealt& dealt) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  Problem<Element> problem(shape);
  int period = 1;
  while (period * shape.cols % kVecSize != 0) ++period;
  StepLayout layout{};
  layout.cols = static_cast<int>(shape.cols);
  layout.shifted = dealt.bundles == 0;
  layout.rows_per_bundle = layout.shifted ? 1 : period;
  layout.rows = layout.shifted ? 1 : period * dealt.bundles;
  layout.lanes_per_row_log2 = dealt.lanes_log2;
  layout.inverse_cols = 1.0f / static_cast<float>(shape.cols);
  layout.steps = (shape.rows + layout.rows - 1) / layout.rows;
  layout.steps_per_team = (layout.steps + dealt.teams - 1) / dealt.teams;
  layout.interleaved = dealt.interleaved;
  const int64_t teams = dealt.interleaved ? std::min(dealt.teams, layout.steps)
                                          : (layout.steps + layout.steps_per_team - 1) / layout.steps_per_team;
  using Forward = ForwardStepsConfig<Element, kForm, kResidual>;
  using Backward = BackwardStepsConfig<Element, kForm, kResidual>;
  const int columns = Backward::Tile::kVecs * kVecSize;  // fewer than of the forward
  const int64_t room = int64_t{dealt.threads} * dealt.blocks * columns;
  const int64_t needed = layout.shifted ? shape.cols + (period > 1 ? kVecSize - 1 : 0) : layout.rows * shape.cols;
  if (needed > room || layout.rows > static_cast<int>(dealt.threads)) std::abort();
  if (layout.shifted && teams < layout.steps && (teams % period != 0 || !dealt.interleaved)) std::abort();
  const auto launch = [&](auto&& kernel) {
    cuda::ptx::clear_dynamic_shared();
    on_cpu::by_region = dealt.blocks > 1;
    on_cpu::launch(static_cast<unsigned>(teams) * dealt.blocks, dealt.threads, kernel, dealt.blocks);
  };
  launch([&] { forward_steps<Forward, kHopper>(problem.forward, layout); });
  problem.make_workspace(teams);
  launch([&] { backward_steps<Backward, kHopper>(problem.backward, layout); });
  problem.add_partials(teams);
  problem.report(name, kForm);
}

void run_all() {
  using Bf16 = __nv_bfloat16;
  constexpr auto kErf = GeluForm::kErf, kTanh = GeluForm::kTanh;
  run<Bf16, kErf, true>("bf16 four vectors a row", {37, 32, 32, 0, 0, 0.5f, true}, {64, 1, 8, 2, true, 0});
  run<Bf16, kErf, true>("bf16 33 columns", {43, 33, 33, 0, 0, 0.5f, true}, {64, 1, 2, 2, false, 1});
  run<Bf16, kErf, false>("bf16 33 columns, without bulk copies", {43, 33, 33, 0, 0, 0.5f, true},
                         {64, 1, 3, 2, true, 2});
  run<__half, kTanh, true>("fp16 tanh, 12 columns, no bias", {41, 12, 12, 0, 0, 0.5f, false},
                           {32, 1, 8, 3, false, 0});
  run<__half, kErf, true>("fp16 far from zero", {21, 40, 40, 0, 0, 100, true}, {32, 1, 4, 2, true, 3});
  run<float, kErf, true>("fp32 37 columns", {45, 37, 37, 0, 0, 0.5f, true}, {64, 1, 4, 2, true, 1});
  run<float, kErf, false>("fp32 129 columns, without bulk copies", {9, 129, 129, 0, 0, 0.5f, true},
                          {64, 1, 1, 2, true, 5});
  run<float, kErf, true>("fp32 70 columns, far from their first", {20, 70, 70, 0, 0, 20, true, 1000},
                         {64, 1, 2, 2, true, 0});
  run<Bf16, kErf, true>("bf16 far from zero, two passes", {21, 40, 40, 0, 0, 30, true}, {32, 1, 4, 2, true, 3});
  run<Bf16, kErf, true>("bf16 odd and far from zero, two passes", {30, 37, 37, 0, 0, 300, true},
                        {64, 1, 1, 2, true, 3});
  run<Bf16, kErf, true>("bf16 rows apart", {23, 136, 144, 0, 0, 0.5f, true}, {64, 1, 3, 2, true, 2});
  run<Bf16, kErf, false>("bf16 rows apart, without bulk copies", {23, 136, 144, 0, 0, 0.5f, true},
                         {64, 1, 3, 2, true, 2});
  run<Bf16, kErf, true, true>("bf16 residual, 35 columns", {29, 35, 35, 0, 0, 0.5f, true, 0, true},
                              {64, 1, 2, 2, true, 2});
  run<float, kTanh, true, true>("fp32 tanh residual, rows apart", {11, 12, 16, 0, 0, 0.5f, true, 0, true},
                                {32, 1, 4, 1, true, 0});
  run<Bf16, kErf, true>("bf16 one block, a long row each step", {3, 1032, 1032, 0, 0, 0.5f, true},
                        {96, 1, 1, 1, true, 5});
  run<Bf16, kErf, true>("bf16 fewer rows than a step", {3, 65, 65, 0, 0, 0.5f, true}, {64, 1, 1, 1, true, 3});
  run<Bf16, kErf, true>("bf16 shifted", {37, 301, 301, 0, 0, 0.5f, true}, {32, 1, 0, 8, true, 5});
  run<Bf16, kErf, false>("bf16 shifted, without bulk copies", {37, 301, 301, 0, 0, 0.5f, true},
                         {32, 1, 0, 8, true, 5});
  run<Bf16, kErf, true>("bf16 shifted, fewer rows than teams", {3, 1001, 1001, 0, 0, 0.5f, true},
                        {64, 1, 0, 3, true, 5});
  run<__half, kErf, true, true>("fp16 shifted, residual", {19, 514, 514, 0, 0, 0.5f, true, 0, true},
                                {64, 1, 0, 4, true, 5});
  run<float, kErf, true>("fp32 shifted, rows apart", {9, 517, 521, 0, 0, 0.5f, true}, {64, 1, 0, 4, true, 5});
  run<Bf16, kErf, true>("bf16 a cluster of two", {17, 1001, 1001, 0, 0, 0.5f, true}, {32, 2, 0, 8, true, 5});
  run<Bf16, kErf, true>("bf16 a cluster of three, far from zero", {9, 1497, 1497, 0, 0, 200, true},
                        {32, 3, 0, 8, true, 5});
  run<Bf16, kErf, true, true>("bf16 residual, a cluster of five, the last block empty",
                              {5, 2056, 2056, 0, 0, 0.5f, true, 0, true}, {64, 5, 0, 2, true, 5});
  run<float, kTanh, true>("fp32 tanh, a cluster of two", {9, 519, 519, 0, 0, 0.5f, true}, {32, 2, 0, 4, true, 5});
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
