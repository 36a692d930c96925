// SPDX-License-Identifier: Apache-2.0
// Runs layer_norm_gelu's kernels for packed rows on the CPU; a line for each case, as layer_norm_gelu_problem.h
// writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

/// How rows are dealt to blocks.
struct Dealt {
  unsigned threads;
  int bundles;  // of a step
  int64_t blocks;
  int lanes_log2;
};

template <class Element, GeluForm kForm, bool kHopper, bool kSplit>
void run(const std::string& name, const Shape& shape, const Dealt& dealt) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  Problem<Element> problem(shape);
  int period = 1;
  while (period * shape.cols % kVecSize != 0) ++period;
  Packing packing{};
  packing.cols = static_cast<int>(shape.cols);
  packing.rows_per_bundle = period;
  packing.vecs_per_bundle = period * packing.cols / kVecSize;
  packing.rows = period * dealt.bundles;
  packing.lanes_per_row_log2 = dealt.lanes_log2;
  packing.inverse_cols = 1.0f / static_cast<float>(shape.cols);
  packing.steps = (shape.rows + packing.rows - 1) / packing.rows;
  const int64_t blocks = std::min(dealt.blocks, packing.steps);
  using Forward = PackedForwardConfig<Element, kSplit, kForm>;
  using Backward = PackedBackwardConfig<Element, kSplit, kForm>;
  const int columns = Backward::Tile::kVecs * kVecSize;  // no more than of the forward
  if (packing.rows * packing.cols > static_cast<int>(dealt.threads) * columns ||
      packing.rows > static_cast<int>(dealt.threads) || (!kSplit && period > 1))
    std::abort();
  const auto launch = [&](auto&& kernel) {
    cuda::ptx::clear_dynamic_shared();
    on_cpu::launch(static_cast<unsigned>(blocks), dealt.threads, kernel);
  };
  launch([&] { packed_forward<Forward, kHopper>(problem.forward, packing); });
  problem.make_workspace(blocks);
  launch([&] { packed_backward<Backward, kHopper>(problem.backward, packing); });
  problem.template add_partials<32>(blocks);
  problem.report(name, kForm);
}

void run_all() {
  using Bf16 = __nv_bfloat16;
  constexpr auto kErf = GeluForm::kErf, kTanh = GeluForm::kTanh;
  run<Bf16, kErf, true, false>("bf16 four vectors a row", {37, 32, 32, 0, 0, 0.5f, true}, {64, 8, 2, 0});
  run<Bf16, kErf, true, true>("bf16 33 columns", {43, 33, 33, 0, 0, 0.5f, true}, {64, 3, 2, 1});
  run<Bf16, kErf, false, true>("bf16 33 columns, without bulk copies", {43, 33, 33, 0, 0, 0.5f, true},
                               {64, 2, 2, 2});
  run<__half, kTanh, true, true>("fp16 tanh, 12 columns, no bias", {41, 12, 12, 0, 0, 0.5f, false},
                                 {32, 8, 3, 0});
  run<__half, kErf, true, false>("fp16 far from zero", {21, 40, 40, 0, 0, 100, true}, {32, 4, 2, 3});
  run<__half, kErf, true, true>("fp16 70 columns, far from their first", {20, 70, 70, 0, 0, 20, true, 1000},
                                {64, 2, 2, 0});
  run<__half, kErf, false, true>("fp16 513 columns, without bulk copies", {11, 513, 513, 0, 0, 0.5f, true},
                                 {288, 1, 2, 4});
  run<float, kErf, true, true>("fp32 37 columns", {45, 37, 37, 0, 0, 0.5f, true}, {64, 4, 2, 1});
  run<float, kErf, true, true>("fp32 36 columns, whole vectors", {45, 36, 36, 0, 0, 0.5f, true},
                               {64, 6, 2, 1});
  run<float, kErf, false, true>("fp32 129 columns, without bulk copies", {9, 129, 129, 0, 0, 0.5f, true},
                                {64, 1, 2, 5});
  run<float, kErf, true, true>("fp32 70 columns, far from their first", {20, 70, 70, 0, 0, 20, true, 1000},
                               {64, 2, 2, 0});
  run<Bf16, kTanh, true, true>("bf16 tanh, whole vectors", {37, 48, 48, 0, 0, 0.5f, true}, {64, 6, 2, 1});
  run<Bf16, kTanh, false, true>("bf16 tanh, 257 columns, without bulk copies",
                                {19, 257, 257, 0, 0, 0.5f, true}, {160, 1, 2, 3});
  run<Bf16, kErf, true, false>("bf16 far from zero, two passes", {21, 40, 40, 0, 0, 30, true}, {32, 4, 2, 3});
  run<Bf16, kErf, true, true>("bf16 odd and far from zero, two passes", {30, 37, 37, 0, 0, 300, true},
                              {64, 1, 2, 3});
  run<Bf16, kErf, false, false>("bf16 17 vectors a row, without bulk copies",
                                {23, 136, 136, 0, 0, 0.5f, true}, {64, 3, 2, 2});
  run<Bf16, kErf, true, true>("bf16 1023 columns", {11, 1023, 1023, 0, 0, 0.5f, true}, {512, 1, 2, 4});
  run<Bf16, kErf, true, true>("bf16 1025 columns", {13, 1025, 1025, 0, 0, 0.5f, true}, {544, 1, 2, 4});
  run<Bf16, kErf, true, false>("bf16 one long row each step", {3, 1032, 1032, 0, 0, 0.5f, true},
                               {96, 1, 1, 5});
  run<Bf16, kErf, true, true>("bf16 fewer rows than a step", {3, 65, 65, 0, 0, 0.5f, true}, {64, 1, 1, 3});
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
