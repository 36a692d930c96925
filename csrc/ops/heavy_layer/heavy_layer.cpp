// SPDX-License-Identifier: Apache-2.0
#include "ops/heavy_layer/heavy_layer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "ops/heavy_layer/fork.h"
#include "ops/op.h"

namespace plab::ops {

namespace {

using torch_abi::contiguous;
using torch_abi::empty;
using torch_abi::empty_like;
using torch_abi::mm;
using torch_abi::mm_out;
using torch_abi::StreamScope;
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

// The copies of Hopper's kernels start at multiples of 16 bytes.
[[maybe_unused]] bool is_aligned(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data()) % 16 == 0;
}

// Matrix products cost 2 n m k flops. In units of 2 d^2, a chain over rows x d costs 3 rows forward and 8
// rows backward (6 and the two products that the chain must repeat); with M = W1 W2 W3 it is 2 d + rows
// forward and at most 6 d + 2 rows backward. So both are better off with M from the same number of rows on.
bool folding_saves(const Problem& p) { return p.rows > p.d; }

// Whether float32 is multiplied as TF32, by torch's products and by ours.
bool is_tf32(const Problem& p, bool allow_tf32) {
  return allow_tf32 && p.cuda && p.type == ElementType::kFloat32;
}

// Products of the weights alone that both directions need. M may lie as its transpose.
struct Folded {
  Tensor w23, m;
};

Folded fold(const Tensor& w1, const Tensor& w2, const Tensor& w3, bool as_transpose) {
  Tensor w23 = mm(w2, w3);
  Tensor m = as_transpose ? transposed(mm(transposed(w23), transposed(w1))) : mm(w1, w23);
  return {std::move(w23), std::move(m)};
}

struct Forward {
  Tensor y;
  std::optional<Folded> folded;
  bool tf32;
};

Forward forward(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b,
                bool allow_tf32) {
  const Problem problem = check(x, w1, w2, w3, b);
  const bool tf32 = is_tf32(problem, allow_tf32);
  Forward result{empty_like(x), std::nullopt, tf32};
  Tensor& y = result.y;
  if (y.numel() == 0) return result;
  const Tensor x_dense = contiguous(x), b_dense = contiguous(b);
  const Tensor rows = as_matrix(x_dense, problem);
  Tensor z = as_matrix(y, problem);
#ifdef PLAB_HAS_CUDA
  if (problem.cuda && folding_saves(problem)) {
    const CudaScope scope(x);
    if (fuses_product(problem.rows, problem.d, problem.type, tf32) && is_aligned(x_dense)) {
      result.folded = fold(w1, w2, w3, true);
      launch_product_tanh({x_dense.data(), result.folded->m.data(), b_dense.data(), y.mutable_data(),
                           problem.rows, problem.d, problem.type},
                          scope.stream());
      return result;
    }
  }
#endif
  if (folding_saves(problem)) {
    result.folded = fold(w1, w2, w3, tf32);  // the library's TF32 kernels want both operands along the depth
    mm_out(z, rows, result.folded->m);
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
  return result;
}

Tensor fast(const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3, const Tensor& b,
            bool allow_tf32) {
  return forward(x, w1, w2, w3, b, allow_tf32).y;
}

// The same, keeping for the backward what it would multiply again. Nothing of the chain is kept, and for TF32
// no M: it lies as the forward wants it, which in the backward makes a slow kind of product.
std::tuple<Tensor, Tensor, Tensor> fast_keeping(const Tensor& x, const Tensor& w1, const Tensor& w2,
                                                const Tensor& w3, const Tensor& b, bool allow_tf32) {
  Forward result = forward(x, w1, w2, w3, b, allow_tf32);
  const auto nothing = [&] { return empty(std::array{int64_t{0}}, w1.dtype(), w1.device()); };
  if (!result.folded) return {std::move(result.y), nothing(), nothing()};
  return {std::move(result.y), std::move(result.folded->w23),
          result.tf32 ? nothing() : std::move(result.folded->m)};
}

// Two lanes of work: on a GPU that the products of d x d matrices leave half idle the second one is another
// stream; elsewhere both are one. What the second lane writes is allocated by the first. With fewer rows the
// launches take longer than the work, and a second stream costs more of them.
class Lanes {
 public:
  Lanes([[maybe_unused]] const Tensor& tensor, [[maybe_unused]] const Problem& problem) {
#ifdef PLAB_HAS_CUDA
    if (!problem.cuda || torch_abi::torch.aoti_torch_create_cuda_stream_guard == nullptr) return;
    scope_.emplace(tensor);
    device_ = tensor.device().index;
    if (leaves_gpu_idle(problem.d)) fork_.emplace(scope_->stream());
#endif
  }

#ifdef PLAB_HAS_CUDA
  void split() {
    if (fork_) fork_->split();
  }
  void join() {
    if (fork_) fork_->join();
  }
  template <class Products>
  void second(Products&& products) {
    std::optional<StreamScope> scope;
    if (fork_) scope.emplace(fork_->side(), device_);
    products();
  }

 private:
  std::optional<CudaScope> scope_;
  std::optional<Fork> fork_;
  int32_t device_ = 0;
#else
  void split() {}
  void join() {}
  template <class Products>
  void second(Products&& products) {
    products();
  }
#endif
};

// G, which may lie as its transpose. On the GPU db may still be in partial sums, which finish() adds up.
class TanhBackward {
 public:
  TanhBackward(const Tensor& dy, const Tensor& y, Tensor& db, const Problem& problem, bool transposes)
      : g_(transposes ? transposed(empty(std::array{problem.d, problem.rows}, y.dtype(), y.device()))
                      : empty(std::array{problem.rows, problem.d}, y.dtype(), y.device())) {
    params_ = {dy.data(),    y.data(),  g_.mutable_data(), db.mutable_data(), nullptr,
               problem.rows, problem.d, problem.type,      transposes};
    if (!problem.cuda) {
      tanh_backward_cpu(params_);
      return;
    }
#ifdef PLAB_HAS_CUDA
    if (const int64_t chunks = tanh_backward_chunks(problem.rows); chunks != 1) {
      partial_ = empty(std::array{chunks, problem.d}, Dtype::kFloat32, y.device());
      params_.partial = partial_->mutable_data<float>();
    }
    const CudaScope scope(y);
    launch_tanh_backward(params_, scope.stream());
#endif
  }

  const Tensor& g() const { return g_; }

  void finish() {
#ifdef PLAB_HAS_CUDA
    if (!partial_) return;
    const CudaScope scope(g_);
    launch_sum_chunks(params_, scope.stream());
#endif
  }

 private:
  Tensor g_;
  std::optional<Tensor> partial_;
  TanhBackwardParams params_{};
};

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor& x,
                                                            const Tensor& w1, const Tensor& w2,
                                                            const Tensor& w3, const Tensor& b,
                                                            const Tensor& y, bool allow_tf32,
                                                            const std::optional<Tensor>& kept_w23,
                                                            const std::optional<Tensor>& kept_m) {
  const Problem problem = check(x, w1, w2, w3, b);
  torch_abi::check_alike(kOp, {{"x", x}, {"dy", dy}, {"y", y}});
  for (const torch_abi::Named& one : {torch_abi::Named{"dy", dy}, {"y", y}}) {
    PLAB_CHECK(std::ranges::equal(one.tensor.sizes(), x.sizes()), kOp, ": ", one.name, " has shape ",
               torch_abi::text(one.tensor.sizes()), " but x has shape ", torch_abi::text(x.sizes()));
  }
  Tensor dx_full = empty_like(x), dw1 = empty_like(w1), dw2 = empty_like(w2), dw3 = empty_like(w3),
         db = empty_like(b);
  if (problem.d != 0) {
    const Tensor x_dense = contiguous(x), dy_dense = contiguous(dy), y_dense = contiguous(y);
    const Tensor rows = as_matrix(x_dense, problem);
    Tensor dx = as_matrix(dx_full, problem);
    if (folding_saves(problem)) {
      Lanes lanes(x, problem);
      // The library is slow at A^T B of two fp32 matrices as they lie. There G is made as its transpose, and
      // so are the products that are to be on the right of such a one.
      const bool transposes = is_tf32(problem, allow_tf32);
      const auto multiply = [transposes](Tensor& memory, const Tensor& left, const Tensor& right) {
        if (!transposes) {
          mm_out(memory, left, right);
          return memory.share();
        }
        mm_out(memory, transposed(right), transposed(left));
        return transposed(memory);
      };
      Tensor dm_memory = empty_like(w1), w1_dm_memory = empty_like(w1);
      const auto is_kept = [](const std::optional<Tensor>& tensor) { return tensor && tensor->numel() != 0; };
      const bool has_w23 = is_kept(kept_w23), has_m = is_kept(kept_m);
      Tensor w23 = has_w23 ? kept_w23->share() : empty_like(w1), m = has_m ? kept_m->share() : empty_like(w1);
      if (!has_m) {
        lanes.split();
        lanes.second([&] {
          if (!has_w23) mm_out(w23, w2, w3);
          mm_out(m, w1, w23);
        });
      }
      TanhBackward tanh(dy_dense, y_dense, db, problem, transposes);
      const Tensor& g = tanh.g();
      lanes.split();
      lanes.second([&] {
        mm_out(dx, g, transposed(m));
        tanh.finish();
      });
      const Tensor dm = multiply(dm_memory, transposed(rows), g);
      lanes.split();
      lanes.second([&] { mm_out(dw1, dm, transposed(w23)); });
      const Tensor w1_dm = multiply(w1_dm_memory, transposed(w1), dm);
      lanes.split();
      lanes.second([&] { mm_out(dw3, transposed(w2), w1_dm); });
      mm_out(dw2, w1_dm, transposed(w3));
      lanes.join();
    } else {
      const Tensor h1 = mm(rows, w1), h2 = mm(h1, w2);
      TanhBackward tanh(dy_dense, y_dense, db, problem, false);
      tanh.finish();
      const Tensor& g = tanh.g();
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
      {"heavy_layer_fast(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, bool allow_tf32=False) -> "
       "Tensor",
       &Box<&fast>::call},
      {"heavy_layer_fast_keeping(Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, bool allow_tf32=False) "
       "-> (Tensor y, Tensor w23, Tensor m)",
       &Box<&fast_keeping>::call},
      {"heavy_layer_backward(Tensor dy, Tensor x, Tensor w1, Tensor w2, Tensor w3, Tensor b, Tensor y, "
       "bool allow_tf32=False, Tensor? w23=None, Tensor? m=None) -> "
       "(Tensor dx, Tensor dw1, Tensor dw2, Tensor dw3, Tensor db)",
       &Box<&backward>::call},
  };
  return kOps;
}

}  // namespace plab::ops
