// SPDX-License-Identifier: Apache-2.0
#include "ops/heavy_layer/heavy_layer.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "ops/op.h"

namespace plab::ops {

namespace {

using torch_abi::contiguous;
using torch_abi::empty;
using torch_abi::empty_like;
using torch_abi::mm;
using torch_abi::mm_out;
using torch_abi::transposed;

constexpr const char* kOp = "heavy_layer";

struct Problem {
  int64_t rows, d;
  ElementType type;
  bool cuda;
};

Problem check(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b) {
  torch_abi::check_alike(kOp, {{"x", x}, {"w1", w1}, {"w2", w2}, {"w3", w3}, {"b", b}});
  const auto sizes = x.sizes();
  PLAB_CHECK(!sizes.empty(), kOp, ": x has no dimensions, expected at least one");
  const int64_t d = sizes.back();
  for (const torch_abi::Named& w : {torch_abi::Named{"w1", w1}, {"w2", w2}, {"w3", w3}}) {
    const auto shape = w.tensor.sizes();
    PLAB_CHECK(shape.size() == 2 && shape[0] == d && shape[1] == d, kOp, ": ", w.name, " has shape ",
               torch_abi::text(shape), " but x has last dimension ", d);
  }
  PLAB_CHECK(b.dim() == 1 && b.size(0) == d, kOp, ": b has shape ", torch_abi::text(b.sizes()),
             " but x has last dimension ", d);
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
  return {rows, d, element_type(kOp, x), x.device().is_cuda()};
}

// A contiguous (..., d) tensor as rows x d.
Tensor as_matrix(const Tensor& tensor, const Problem& problem) {
  return torch_abi::view(tensor, std::array{problem.rows, problem.d}, std::array{problem.d, int64_t{1}});
}

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

// Matrix products cost 2 n m k flops. In units of 2 d^2, a chain over rows x d costs 3 rows forward and 8
// rows backward (6 and the two products that the chain must repeat); with M = W1 W2 W3 it is 2 d + rows
// forward and 7 d + 2 rows backward.
bool folding_saves_forward(const Problem& p) { return 2 * p.d + p.rows < 3 * p.rows; }
bool folding_saves_backward(const Problem& p) { return 7 * p.d + 2 * p.rows < 8 * p.rows; }

Tensor fast(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b) {
  const Problem problem = check(x, w1, w2, w3, b);
  Tensor y = empty_like(x);
  if (y.numel() == 0) return y;
  const Tensor x_dense = contiguous(x), b_dense = contiguous(b);
  const Tensor rows = as_matrix(x_dense, problem);
  Tensor z = as_matrix(y, problem);
  if (folding_saves_forward(problem)) {
    mm_out(z, rows, mm(mm(w1, w2), w3));
  } else {
    mm_out(z, mm(mm(rows, w1), w2), w3);
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
  return y;
}

// G and db from dY and Y.
std::tuple<Tensor, Tensor> tanh_backward(const Tensor& dy, const Tensor& y, const Tensor& b,
                                         const Problem& problem) {
  Tensor g = empty_like(y);
  Tensor db = empty_like(b);
  if (problem.d == 0) return {std::move(g), std::move(db)};
  const Tensor dy_dense = contiguous(dy), y_dense = contiguous(y);
  TanhBackwardParams params{dy_dense.data(), y_dense.data(), g.mutable_data(), db.mutable_data(),
                            nullptr,         problem.rows,   problem.d,        problem.type};
  if (!problem.cuda) {
    tanh_backward_cpu(params);
  } else {
#ifdef PLAB_HAS_CUDA
    Tensor partial =
        empty(std::array{tanh_backward_chunks(problem.rows), problem.d}, Dtype::kFloat32, y.device());
    params.partial = partial.mutable_data<float>();
    const CudaScope scope(y);
    launch_tanh_backward(params, scope.stream());
#endif
  }
  return {std::move(g), std::move(db)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor& x,
                                                            const Tensor& w1, const Tensor& w2,
                                                            const Tensor& w3, const Tensor& b,
                                                            const Tensor& y) {
  const Problem problem = check(x, w1, w2, w3, b);
  torch_abi::check_alike(kOp, {{"x", x}, {"dy", dy}, {"y", y}});
  for (const torch_abi::Named& one : {torch_abi::Named{"dy", dy}, {"y", y}}) {
    PLAB_CHECK(std::ranges::equal(one.tensor.sizes(), x.sizes()), kOp, ": ", one.name, " has shape ",
               torch_abi::text(one.tensor.sizes()), " but x has shape ", torch_abi::text(x.sizes()));
  }
  auto [g_full, db] = tanh_backward(dy, y, b, problem);
  Tensor dx_full = empty_like(x), dw1 = empty_like(w1), dw2 = empty_like(w2), dw3 = empty_like(w3);
  if (problem.d != 0) {
    const Tensor x_dense = contiguous(x);
    const Tensor rows = as_matrix(x_dense, problem), g = as_matrix(g_full, problem);
    Tensor dx = as_matrix(dx_full, problem);
    if (folding_saves_backward(problem)) {
      const Tensor w12 = mm(w1, w2), w23 = mm(w2, w3), dm = mm(transposed(rows), g);
      mm_out(dx, g, transposed(mm(w12, w3)));
      mm_out(dw1, dm, transposed(w23));
      mm_out(dw2, mm(transposed(w1), dm), transposed(w3));
      mm_out(dw3, transposed(w12), dm);
    } else {
      const Tensor h1 = mm(rows, w1), h2 = mm(h1, w2);
      const Tensor g2 = mm(g, transposed(w3)), g1 = mm(g2, transposed(w2));
      mm_out(dx, g1, transposed(w1));
      mm_out(dw1, transposed(rows), g1);
      mm_out(dw2, transposed(h1), g2);
      mm_out(dw3, transposed(h2), g);
    }
  }
  return {std::move(dx_full), std::move(dw1), std::move(dw2), std::move(dw3), std::move(db)};
}

}  // namespace

std::span<const OpDef> heavy_layer_ops() {
  static constexpr OpDef kOps[] = {
      {"heavy_layer_slow(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b) -> Tensor", &Box<&slow>::call},
      {"heavy_layer_fast(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b) -> Tensor", &Box<&fast>::call},
      {"heavy_layer_backward(Tensor dy, Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, Tensor y) -> "
       "(Tensor dx, Tensor dw1, Tensor dw2, Tensor dw3, Tensor db)",
       &Box<&backward>::call},
  };
  return kOps;
}

}  // namespace plab::ops
