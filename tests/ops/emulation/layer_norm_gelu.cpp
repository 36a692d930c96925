// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of layer_norm_gelu on the CPU that give a row to a warp, a block or a cluster; a line for each
// case, as layer_norm_gelu_problem.h writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

/// kForwardStages 0: the forward goes straight into registers.
template <class Tile, class Group, Weights kWeights, int kStages, bool kOverlap, GeluForm kForm,
          int kForwardStages = kStages, class ForwardTile = Tile, class ForwardGroup = Group>
void run(const char* name, const Shape& shape) {
  using Element = typename Tile::Element;
  using Forward = ForwardConfig<ForwardTile, ForwardGroup, 1024,
                                kForwardStages == 0 ? Weights::kCached : kWeights, kForwardStages, kForm>;
  using Backward = BackwardConfig<Tile, Group, 1024, 4, kWeights, kStages, kOverlap, kForm>;
  Problem<Element> problem(shape);
  const int threads_per_row =
      static_cast<int>((shape.cols + 32 * Tile::kElements - 1) / (32 * Tile::kElements) * 32);
  const int groups = Group::kIsWarp ? 4 : 1;
  const int64_t runs = (shape.rows + shape.rows_per_group - 1) / shape.rows_per_group;
  const auto blocks = static_cast<unsigned>((runs + groups - 1) / groups);
  const RowOrder order{shape.rows_per_group, false, 1, 1.0f / static_cast<float>(shape.cols), 0};
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

/// How shifted rows are dealt to groups.
struct Dealt {
  unsigned threads, blocks;  // of a block, of a cluster
  int64_t groups;
  int forward_vecs, backward_vecs;  // of a thread
};

template <class Element, GeluForm kForm, class Group, bool kOverlap, bool kResidual = false>
void run_shifted(const char* name, const Shape& shape, const Dealt& dealt) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  using Forward =
      ForwardConfig<RowTile<Element, 32 / kVecSize, Access::kShifted>, Group, 512,
                    sizeof(Element) == 2 ? Weights::kRegisters : Weights::kFloats, 3, kForm, kResidual>;
  using Backward = BackwardConfig<RowTile<Element, 16 / kVecSize, Access::kShifted>, Group, 512, 4,
                                  Weights::kShared, kOverlap ? 3 : 2, kOverlap, kForm, kResidual>;
  Problem<Element> problem(shape);
  const auto launch = [&](int vecs, auto&& kernel) {
    const RowOrder order{(shape.rows + dealt.groups - 1) / dealt.groups, true, 0,
                         1.0f / static_cast<float>(shape.cols), vecs};
    if (int64_t{vecs} * kVecSize * dealt.threads * dealt.blocks < shape.cols + kVecSize - 1) std::abort();
    if (dealt.groups * shape.cols % kVecSize != 0 && dealt.groups < shape.rows) std::abort();
    cuda::ptx::clear_dynamic_shared();
    on_cpu::by_region = dealt.blocks > 1;
    on_cpu::launch(
        static_cast<unsigned>(dealt.groups) * dealt.blocks, dealt.threads, [&] { kernel(order); },
        dealt.blocks);
  };
  launch(dealt.forward_vecs, [&](const RowOrder& order) { forward_kernel<Forward>(problem.forward, order); });
  problem.make_workspace(dealt.groups);
  launch(dealt.backward_vecs,
         [&](const RowOrder& order) { backward_kernel<Backward>(problem.backward, order); });
  problem.template add_partials<32>(dealt.groups);
  problem.report(name, kForm);
}

void run_shifted() {
  using Bf16 = __nv_bfloat16;
  using Block = cuda::BlockPairSum;
  using Cluster = cuda::ClusterPairSum<0>;
  constexpr auto kErf = GeluForm::kErf, kTanh = GeluForm::kTanh;
  constexpr bool kInTurn = false, kOverlap = true;
  run_shifted<Bf16, kErf, Block, kOverlap>("bf16 odd", {37, 301, 301, 0, 0, 0.5f, true}, {64, 1, 8, 2, 1});
  run_shifted<Bf16, kErf, Block, kInTurn>("bf16 odd, fewer rows than groups",
                                          {3, 1001, 1001, 0, 0, 0.5f, true}, {64, 1, 3, 4, 2});
  run_shifted<Bf16, kErf, Block, kOverlap>("bf16 odd and far from zero", {17, 515, 515, 0, 0, 100, true},
                                           {64, 1, 8, 3, 2});
  run_shifted<Bf16, kErf, Block, kInTurn>("bf16 rows apart that start at 16 bytes",
                                          {9, 1032, 1040, 0, 0, 0.5f, true}, {96, 1, 2, 2, 2});
  run_shifted<__half, kTanh, Block, kOverlap, true>(
      "fp16 tanh residual", {19, 514, 514, 0, 0, 0.5f, true, 0, true}, {64, 1, 4, 4, 2});
  run_shifted<float, kErf, Block, kInTurn>("fp32 odd", {9, 517, 517, 0, 0, 0.5f, true}, {64, 1, 4, 3, 3});
  run_shifted<float, kTanh, Block, kInTurn, true>("fp32 tanh residual, no bias, far from its first element",
                                                  {9, 119, 119, 0, 0, 20, false, 1000, true},
                                                  {32, 1, 4, 8, 4});
  run_shifted<Bf16, kErf, Cluster, kOverlap>("bf16 odd, a cluster of two", {17, 1001, 1001, 0, 0, 0.5f, true},
                                             {64, 2, 8, 1, 1});
  run_shifted<Bf16, kErf, Cluster, kOverlap>("bf16 odd, a cluster of three",
                                             {9, 1497, 1497, 0, 0, 0.5f, true}, {32, 3, 8, 2, 2});
  run_shifted<Bf16, kErf, Cluster, kInTurn, true>("bf16 residual, a cluster of five, the last block empty",
                                                  {5, 2056, 2056, 0, 0, 0.5f, true, 0, true},
                                                  {64, 5, 2, 1, 1});
  run_shifted<float, kErf, Cluster, kInTurn>("fp32 a cluster of two", {9, 519, 519, 0, 0, 0.5f, true},
                                             {32, 2, 4, 3, 3});
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
  run_shifted();
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
