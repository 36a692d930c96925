// SPDX-License-Identifier: Apache-2.0
// Runs layer_norm_gelu's kernels for shifted rows on the CPU, in blocks and in clusters; a line for each case, as
// layer_norm_gelu_problem.h writes it.
#include "layer_norm_gelu_problem.h"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

/// Threads of a block, blocks of a cluster, groups, and vectors that a thread uses forward and backward.
struct Dealt {
  unsigned threads, blocks;
  int64_t groups;
  int forward_vecs, backward_vecs;
};

template <class Element, GeluForm kForm, bool kOverlap, class Group, bool kResidual = false>
void run(const std::string& name, const Shape& shape, const Dealt& dealt) {
  constexpr int kVecSize = cuda::kVecSize<Element>;
  using Forward = ForwardConfig<RowTile<Element, 32 / kVecSize, Access::kShifted>, Group, 512, Weights::kFloats, 3, kForm, kResidual>;
  using Backward = BackwardConfig<RowTile<Element, 16 / kVecSize, Access::kShifted>, Group, 512, 4, Weights::kShared,
                                  kOverlap ? 3 : 2, kOverlap, kForm, kResidual>;
  Problem<Element> problem(shape);
  const auto launch = [&](int vecs, auto&& kernel) {
    const RowOrder order{(shape.rows + dealt.groups - 1) / dealt.groups, true, 0, 1.0f / static_cast<float>(shape.cols), vecs};
    if (int64_t{vecs} * kVecSize * dealt.threads * dealt.blocks < shape.cols + kVecSize - 1) std::abort();
    if (dealt.groups * shape.cols % kVecSize != 0 && dealt.groups < shape.rows) std::abort();
    cuda::ptx::clear_dynamic_shared();
    on_cpu::launch(static_cast<unsigned>(dealt.groups) * dealt.blocks, dealt.threads, [&] { kernel(order); }, dealt.blocks);
  };
  launch(dealt.forward_vecs, [&](const RowOrder& order) { forward_kernel<Forward>(problem.forward, order); });
  problem.make_workspace(dealt.groups);
  launch(dealt.backward_vecs, [&](const RowOrder& order) { backward_kernel<Backward>(problem.backward, order); });
  problem.add_partials(dealt.groups);
  problem.report(name, kForm);
}

void run_all() {
  using Bf16 = __nv_bfloat16;
  using Block = cuda::BlockPairSum;
  using Cluster = cuda::ClusterPairSum<0>;
  constexpr auto kErf = GeluForm::kErf, kTanh = GeluForm::kTanh;
  constexpr bool kInTurn = false, kOverlap = true;
  run<Bf16, kErf, kOverlap, Block>("bf16 odd", {37, 301, 301, 0, 0, 0.5f, true}, {64, 1, 8, 2, 1});
  run<Bf16, kErf, kOverlap, Block>("bf16 odd, fewer rows than groups", {3, 1001, 1001, 0, 0, 0.5f, true}, {64, 1, 3, 4, 2});
  run<Bf16, kErf, kOverlap, Block>("bf16 odd and far from zero", {17, 515, 515, 0, 0, 100, true}, {64, 1, 8, 3, 2});
  run<Bf16, kErf, kOverlap, Block>("bf16 starts at 16 bytes, warps with different numbers of vectors", {9, 1032, 1040, 0, 0, 0.5f, true}, {96, 1, 2, 2, 2});
  run<__half, kTanh, kOverlap, Block, true>("fp16 tanh residual", {19, 514, 514, 0, 0, 0.5f, true, 0, true}, {64, 1, 4, 4, 2});
  run<float, kErf, kInTurn, Block>("fp32 odd", {9, 517, 517, 0, 0, 0.5f, true}, {64, 1, 4, 3, 3});
  run<float, kTanh, kInTurn, Block, true>("fp32 tanh residual, no bias, far from its first element", {9, 259, 259, 0, 0, 20, false, 1000, true}, {32, 1, 4, 8, 4});
  on_cpu::by_region = true;
  run<Bf16, kErf, kOverlap, Cluster>("bf16 odd, a cluster of two", {17, 1001, 1001, 0, 0, 0.5f, true}, {64, 2, 8, 1, 1});
  run<Bf16, kErf, kOverlap, Cluster>("bf16 odd, a cluster of three", {9, 1497, 1497, 0, 0, 0.5f, true}, {32, 3, 8, 2, 2});
  run<Bf16, kErf, kOverlap, Cluster, true>("bf16 residual, a cluster of five, the last one empty", {5, 2056, 2056, 0, 0, 0.5f, true, 0, true}, {64, 5, 2, 1, 1});
  run<float, kErf, kInTurn, Cluster>("fp32 a cluster of two", {9, 519, 519, 0, 0, 0.5f, true}, {32, 2, 4, 3, 3});
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
