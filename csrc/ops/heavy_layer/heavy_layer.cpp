// SPDX-License-Identifier: Apache-2.0
#include "ops/heavy_layer/heavy_layer.h"

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "ops/heavy_layer/problem.h"
#include "ops/op.h"

namespace plab::ops {

namespace {

using namespace heavy;

Tensor slow(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b) {
  const Problem problem = check(x, w1, w2, w3, b);
  PLAB_CHECK(!problem.cuda || problem.d <= kSlowMaxWidth, kOp,
             ": the slow kernel takes a last dimension of at most ", kSlowMaxWidth, ", but x has ",
             problem.d);
  PLAB_CHECK(!problem.cuda || problem.rows <= kSlowMaxRows, kOp, ": the slow kernel takes at most ",
             kSlowMaxRows, " rows, but x has ", problem.rows);
  Tensor y = empty_like(x);
  if (y.numel() == 0) return y;
  const Tensor x_dense = contiguous(x), w1_dense = contiguous(w1), w2_dense = contiguous(w2),
               w3_dense = contiguous(w3), b_dense = contiguous(b);
  const HeavyLayerSlowParams params{x_dense.data(),  w1_dense.data(), w2_dense.data(),
                                    w3_dense.data(), b_dense.data(),  y.mutable_data(),
                                    problem.rows,    problem.d,       problem.type};
  if (!problem.cuda) {
    heavy_layer_slow_cpu(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(x);
    launch_heavy_layer_slow(params, scope.stream());
#endif
  }
  return y;
}

struct Forward {
  Tensor y;
  std::optional<Made> made;
  bool keeps_second = true;
};

Forward forward(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b,
                bool allow_tf32) {
  const Problem problem = check(x, w1, w2, w3, b);
  const bool tf32 = is_tf32(problem, allow_tf32), folds = folding_saves(problem);
  Forward result{empty_like(x), std::nullopt};
  Tensor& y = result.y;
  if (y.numel() == 0) return result;
  result.keeps_second = !(folds && tf32);  // such an M would need a slow GEMM layout in the backward
  const Tensor x_dense = contiguous(x), b_dense = contiguous(b);
  const Tensor rows = as_matrix(x_dense, problem);
  Tensor z = as_matrix(y, problem);
#ifdef PLAB_HAS_SM90A
  const auto own = own_operands(problem, x_dense, w1, w2, w3);
  if (own && !folds) {
    result.made = chain_by_own_kernels(problem, *own, b_dense, &y);
    return result;
  }
  if (problem.cuda && folds) {
    const CudaScope scope(x);
    if (fuses_product(problem.rows, problem.d, problem.type, tf32) && is_aligned(x_dense)) {
      result.made = own ? fold_by_own_kernels(problem, *own) : fold(problem, tf32, w1, w2, w3, true);
      launch_product_tanh({x_dense.data(), result.made->second.data(), b_dense.data(), y.mutable_data(),
                           problem.rows, problem.d, problem.type, own.has_value()},
                          scope.stream());
      return result;
    }
  }
#endif
  if (folds) {
    result.made = fold(problem, tf32, w1, w2, w3, tf32);  // cuBLAS's TF32 kernels want contiguous depths
    mm_out(z, rows, result.made->second);
  } else {
    Tensor h1 = mm(rows, w1), h2 = mm(h1, w2);
    mm_out(z, h2, w3);
    result.made = Made{std::move(h1), std::move(h2)};
  }
  const BiasTanhParams params{y.mutable_data(), b_dense.data(), problem.rows, problem.d, problem.type};
  if (!problem.cuda) {
    bias_tanh_cpu(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(x);
    launch_bias_tanh(params, scope.stream());
#endif
  }
  return result;
}

Tensor fast(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b,
            bool allow_tf32) {
  return forward(x, w1, w2, w3, b, allow_tf32).y;
}

// The same, but keeps the products that the backward would otherwise recompute.
std::tuple<Tensor, Tensor, Tensor> fast_keeping(const Tensor& x, const Tensor& w1, const Tensor& w2,
                                                const Tensor& w3, const Tensor& b, bool allow_tf32) {
  Forward result = forward(x, w1, w2, w3, b, allow_tf32);
  const auto nothing = [&] { return empty(std::array{int64_t{0}}, w1.dtype(), w1.device()); };
  if (!result.made) return {std::move(result.y), nothing(), nothing()};
  return {std::move(result.y), std::move(result.made->first),
          result.keeps_second ? std::move(result.made->second) : nothing()};
}

}  // namespace

std::span<const OpDef> heavy_layer_ops() {
  static constexpr OpDef kOps[] = {
      {"heavy_layer_slow(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b) -> Tensor", &Box<&slow>::call},
      {"heavy_layer_fast(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, bool allow_tf32=False) -> "
       "Tensor",
       &Box<&fast>::call},
      {"heavy_layer_fast_keeping(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, bool allow_tf32=False) "
       "-> (Tensor y, Tensor kept1, Tensor kept2)",
       &Box<&fast_keeping>::call},
      {"heavy_layer_backward(Tensor dy, Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, Tensor y, "
       "bool allow_tf32=False, Tensor? kept1=None, Tensor? kept2=None) -> "
       "(Tensor dx, Tensor dw1, Tensor dw2, Tensor dw3, Tensor db)",
       &Box<&heavy::backward>::call},
  };
  return kOps;
}

}  // namespace plab::ops
