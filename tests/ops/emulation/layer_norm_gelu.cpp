// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of layer_norm_gelu on the CPU that give a row to a warp or a block; a line for each case,
// as layer_norm_gelu_problem.h writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"
#include "ops/layer_norm_gelu/portable/long_rows.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

/// kForwardStages 0: the forward goes straight into registers.
template <class Tile, class Group, Weights kWeights, int kStages, bool kOverlap, GeluForm kForm,
          int kForwardStages = kStages, class ForwardTile = Tile, class ForwardGroup = Group>
void run(const char* name, const Shape& shape) {
  using Element = typename Tile::Element;
  constexpr Residual kResidual =
      kForm == GeluForm::kTanh ? Residual::kEither : Residual::kNo;  // none is given
  using Forward =
      ForwardConfig<ForwardTile, ForwardGroup, 1024, kForwardStages == 0 ? Weights::kCached : kWeights,
                    kForwardStages, kForm, kResidual>;
  using Backward = BackwardConfig<Tile, Group, 1024, 4, kWeights, kStages, kOverlap, kForm, kResidual>;
  Problem<Element> problem(shape);
  const int threads_per_row =
      static_cast<int>((shape.cols + 32 * Tile::kElements - 1) / (32 * Tile::kElements) * 32);
  const int groups = Group::kIsWarp ? 4 : 1;
  const int64_t runs = (shape.rows + shape.rows_per_group - 1) / shape.rows_per_group;
  const auto blocks = static_cast<unsigned>((runs + groups - 1) / groups);
  const RowOrder order{shape.rows_per_group, false, 1, 1.0f / static_cast<float>(shape.cols)};
  cuda::ptx::clear_dynamic_shared();
  if constexpr (kForwardStages == 0) {
    const unsigned threads = ForwardGroup::kIsWarp ? 128 : threads_per_row;
    const int64_t run = Forward::kOneRow ? 1 : shape.rows_per_group, of_block = run * Forward::kRowsAtATime;
    on_cpu::launch(static_cast<unsigned>((shape.rows + of_block - 1) / of_block), threads,
                   [&] { forward_direct_kernel<Forward>(problem.forward, order); });
  } else {
    on_cpu::launch(blocks, threads_per_row * groups,
                   [&] { forward_kernel<Forward>(problem.forward, order); });
  }
  problem.make_workspace(blocks);
  cuda::ptx::clear_dynamic_shared();
  on_cpu::launch(blocks, threads_per_row * groups,
                 [&] { backward_kernel<Backward>(problem.backward, order); });
  problem.template add_partials<8>(blocks);
  problem.report(name, kForm);
}

/// Rows that no other kernel supports, in two blocks; `runs` of rows are added up by columns.
template <class Element, GeluForm kForm>
void run_long(const char* name, const Shape& shape, int runs) {
  Problem<Element> problem(shape);
  on_cpu::launch(2, kLongThreads, [&] { forward_long_kernel<Element, kForm>(problem.forward); });
  on_cpu::launch(2, kLongThreads, [&] { backward_long_kernel<Element, kForm>(problem.backward); });
  problem.make_workspace(runs);
  const auto columns = static_cast<unsigned>((shape.cols + kLongSumsThreads - 1) / kLongSumsThreads);
  on_cpu::launch(columns * runs, kLongSumsThreads,
                 [&] { backward_long_sums_kernel<Element, kForm>(problem.backward); });
  problem.template add_partials<8>(runs);
  problem.report(name, kForm);
}

void run_all() {
  using cuda::BlockPairSum;
  using cuda::WarpPairSum;
  using Bf16 = __nv_bfloat16;
  using enum Access;
  using enum Weights;
  constexpr auto kErf = GeluForm::kErf, kTanh = GeluForm::kTanh;
  constexpr bool kInTurn = false, kOverlap = true;
  run<RowTile<Bf16, 2, kExact>, WarpPairSum, kShared, 3, kOverlap, kErf>("bf16 a warp per row",
                                                                         {11, 512, 512, 0, 2, 0.5f, true});
  run<RowTile<Bf16, 1, kExact>, BlockPairSum, kFloats, 3, kOverlap, kErf>(
      "bf16 three warps per row, rows apart", {5, 768, 776, 0, 2, 0.5f, true});
  run<RowTile<__half, 2, kExact>, BlockPairSum, kCached, 4, kInTurn, kTanh>(
      "fp16 tanh, no bias", {9, 1024, 1024, 0, 6, 0.5f, false});
  run<RowTile<Bf16, 2, kExact>, BlockPairSum, kRegisters, 3, kOverlap, kErf>("bf16 far from zero, two passes",
                                                                             {3, 1024, 1024, 0, 3, 30, true});
  run<RowTile<float, 2, kExact>, BlockPairSum, kShared, 3, kOverlap, kErf>("fp32 two warps per row",
                                                                           {4, 512, 512, 0, 2, 0.5f, true});
  run<RowTile<float, 1, kScalar>, BlockPairSum, kShared, 4, kOverlap, kTanh>("fp32 odd and not aligned",
                                                                             {4, 301, 307, 1, 2, 0.5f, true});
  run<RowTile<float, 1, kScalar>, WarpPairSum, kShared, 3, kInTurn, kErf>("fp32 a short odd row for a warp",
                                                                          {9, 37, 37, 1, 1, 0.5f, false});
  run<RowTile<Bf16, 1, kVector>, WarpPairSum, kShared, 3, kOverlap, kErf>("bf16 vectors, some lanes idle",
                                                                          {9, 136, 136, 0, 2, 0.5f, true});
  run<RowTile<Bf16, 2, kExact>, BlockPairSum, kFloats, 6, kOverlap, kErf>(
      "bf16 a run longer than the ring", {14, 1024, 1024, 0, 13, 0.5f, true});
  run<RowTile<float, 2, kVector>, BlockPairSum, kFloats, 3, kInTurn, kErf>(
      "fp32 some threads idle, far from its first element", {3, 420, 424, 0, 2, 20, true, 1000});
  run<RowTile<Bf16, 4, kVector>, BlockPairSum, kCached, 3, kOverlap, kErf>(
      "bf16 vectors, some threads idle, mean corrected", {3, 1480, 1480, 0, 2, 400, true});
  run<RowTile<Bf16, 2, kExact>, WarpPairSum, kShared, 3, kOverlap, kErf, 0, RowTile<Bf16, 4, kExact, 16>,
      cuda::LanePairSum<16>>("bf16 half a warp per row, straight into registers",
                             {11, 512, 520, 0, 2, 0.5f, true});
  run<RowTile<Bf16, 2, kExact>, WarpPairSum, kShared, 3, kOverlap, kErf, 0, RowTile<Bf16, 4, kExact, 16>,
      cuda::LanePairSum<16>>("bf16 half a warp per row, far from zero", {5, 512, 512, 0, 1, 300, true});
  run<RowTile<Bf16, 3, kExact>, WarpPairSum, kShared, 3, kOverlap, kErf, 0, RowTile<Bf16, 6, kExact, 16>,
      cuda::LanePairSum<16>>("bf16 half a warp per row, 48 columns each", {13, 768, 768, 0, 2, 0.5f, true});
  run<RowTile<float, 2, kExact>, BlockPairSum, kShared, 3, kInTurn, kErf, 0>("fp32 straight into registers",
                                                                             {7, 768, 768, 0, 3, 0.5f, true});
  run<RowTile<Bf16, 1, kExact>, WarpPairSum, kShared, 3, kOverlap, kErf, 0>("bf16 short rows, a few a warp",
                                                                            {23, 256, 264, 0, 3, 0.5f, true});
  run<RowTile<Bf16, 2, kExact>, BlockPairSum, kShared, 3, kOverlap, kErf, 0>(
      "bf16 five warps per row, straight into registers", {4, 2560, 2560, 0, 2, 0.5f, true});
  run<RowTile<__half, 1, kScalar>, BlockPairSum, kShared, 3, kOverlap, kErf>("fp16 rows not aligned",
                                                                             {3, 600, 601, 1, 2, 0.5f, true});
  run_long<Bf16, kErf>("bf16 long rows, more than are read at a time", {21, 1301, 1303, 1, 0, 0.5f, true}, 2);
  run_long<float, kTanh>("fp32 long rows in tanh form, no bias, a run without rows",
                         {9, 700, 700, 0, 0, 0.5f, false}, 6);
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
