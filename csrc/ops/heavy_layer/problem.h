// SPDX-License-Identifier: Apache-2.0
// What the host code of heavy_layer's forward and backward have in common: the checks, and the products of the
// weights.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "ops/heavy_layer/heavy_layer.h"
#include "ops/op.h"
#ifdef PLAB_HAS_SM90A
#include "ops/heavy_layer/sm90/sm90.h"
#endif

namespace plab::ops::heavy {

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

inline Problem check(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b) {
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
inline Tensor as_matrix(const Tensor& tensor, const Problem& problem) {
  return torch_abi::view(tensor, std::array{problem.rows, problem.d}, std::array{problem.d, int64_t{1}});
}

// The copies of Hopper's kernels start at multiples of 16 bytes.
inline bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0;
}

// A GEMM costs 2 n m k flops. In units of 2 d^2, the chain over rows x d costs 3 rows forward and 6 rows backward.
// With M = W1 W2 W3 it is 2 d + rows forward and 4 d + 2 rows backward. (Both keep what the forward computed.) So
// forward and backward profit from M from the same number of rows on.
inline bool folding_saves(const Problem& p) { return p.rows > p.d; }

// Whether float32 is multiplied as TF32, by torch's products and by ours.
inline bool is_tf32(const Problem& p, bool allow_tf32) {
  return allow_tf32 && p.cuda && p.type == ElementType::kFloat32;
}

// The products that both directions need. Folded: W2 W3 and M = W1 W2 W3, which may be stored as its transpose.
// Chain: X W1 and X W1 W2.
struct Made {
  Tensor first, second;
};

// C = A B of d x d matrices. Our own kernel for float32 without TF32 where cuBLAS leaves most of the GPU idle.
inline Tensor square_product([[maybe_unused]] const Problem& p, [[maybe_unused]] bool tf32, const Tensor& a,
                             const Tensor& b) {
#ifdef PLAB_HAS_CUDA
  if (p.cuda && p.type == ElementType::kFloat32 && !tf32 && a.is_contiguous() && b.is_contiguous() &&
      is_aligned(a) && is_aligned(b)) {
    const CudaScope scope(a);
    if (fits_square_product(p.d)) {
      Tensor c = empty_like(a);
      launch_square_product({a.data<float>(), b.data<float>(), c.mutable_data<float>(), p.d}, scope.stream());
      return c;
    }
  }
#endif
  return mm(a, b);
}

inline Made fold(const Problem& p, bool tf32, const Tensor& w1, const Tensor& w2, const Tensor& w3,
                 bool as_transpose) {
  Tensor w23 = square_product(p, tf32, w2, w3);
  Tensor m =
      as_transpose ? transposed(mm(transposed(w23), transposed(w1))) : square_product(p, tf32, w1, w23);
  return {std::move(w23), std::move(m)};
}

#ifdef PLAB_HAS_SM90A
// What the kernels for 16-bit GEMMs read, or nothing where they do not support the problem.
struct OwnOperands {
  Tensor x, w1, w2, w3;
};

inline std::optional<OwnOperands> own_operands(const Problem& p, const Tensor& x, const Tensor& w1,
                                               const Tensor& w2, const Tensor& w3) {
  if (!p.cuda || p.d == 0 || p.rows == 0) return std::nullopt;
  const CudaScope scope(x);
  if (!has_small_products(p.rows, p.d, p.type)) return std::nullopt;
  OwnOperands own{contiguous(x), contiguous(w1), contiguous(w2), contiguous(w3)};
  if (!is_aligned(own.x) || !is_aligned(own.w1) || !is_aligned(own.w2) || !is_aligned(own.w3))
    return std::nullopt;
  return own;
}

inline Made fold_by_own_kernels(const Problem& p, const OwnOperands& own) {
  Tensor w23 = empty_like(own.w1), m_transposed = empty_like(own.w1);
  const CudaScope scope(own.x);
  launch_fold({own.w1.data(), own.w2.data(), own.w3.data(), w23.mutable_data(), m_transposed.mutable_data(),
               p.d, p.type},
              scope.stream());
  return {std::move(w23), transposed(m_transposed)};
}

// H1 and H2, and Y if it has a destination.
inline Made chain_by_own_kernels(const Problem& p, const OwnOperands& own, const Tensor& b, Tensor* y) {
  const std::array sizes{p.rows, p.d};
  Tensor h1 = empty(sizes, b.dtype(), b.device()), h2 = empty(sizes, b.dtype(), b.device());
  const CudaScope scope(own.x);
  launch_chain({own.x.data(), own.w1.data(), own.w2.data(), own.w3.data(), b.data(), h1.mutable_data(),
                h2.mutable_data(), y == nullptr ? nullptr : y->mutable_data(), p.rows, p.d, p.type},
               scope.stream());
  return {std::move(h1), std::move(h2)};
}
#endif

/// dx, dw1, dw2, dw3, db
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Gradients backward(const Tensor& dy, const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3,
                   const Tensor& b, const Tensor& y, bool allow_tf32, const std::optional<Tensor>& kept1,
                   const std::optional<Tensor>& kept2);

}  // namespace plab::ops::heavy
