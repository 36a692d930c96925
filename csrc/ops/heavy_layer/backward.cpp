// SPDX-License-Identifier: Apache-2.0
// The backward of heavy_layer: our own kernels where the GEMMs are small, else torch's GEMMs on two streams.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "ops/heavy_layer/fork.h"
#include "ops/heavy_layer/problem.h"

namespace plab::ops::heavy {

namespace {

using torch_abi::StreamScope;

// Two lanes of work. On a GPU that a d x d GEMM leaves half idle, the second lane is another stream; otherwise both
// lanes are the same stream. What the second lane writes is allocated by the first. With few rows the launches
// take longer than the work, and a second stream needs more of them.
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

// G, which may be stored as its transpose. On the GPU db may still be in partial sums, which finish() adds.
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

#ifdef PLAB_HAS_SM90A
// With our own kernels, except X^T G.
Gradients backward_by_own_kernels(const Problem& p, const OwnOperands& own, const Tensor& dy, const Tensor& y,
                                  const Tensor& b, const Made& made) {
  const bool folds = folding_saves(p);
  const Tensor& like = folds ? own.w1 : made.first;
  Tensor g = empty_like(y), own1 = empty_like(like), own2 = empty_like(like);
  Tensor dx = empty_like(y), dw1 = empty_like(own.w1), dw2 = empty_like(own.w1), dw3 = empty_like(own.w1),
         db = empty_like(b);
  std::optional<Tensor> partial;
  if (const int64_t chunks = tanh_backward_chunks(p.rows); chunks != 1)
    partial = empty(std::array{chunks, p.d}, Dtype::kFloat32, y.device());
  const OwnBackwardParams params{
      .x = own.x.data(),
      .w1 = own.w1.data(),
      .w2 = own.w2.data(),
      .w3 = own.w3.data(),
      .g = g.data(),
      .made = {made.first.data(), made.second.data()},
      .m_is_transposed = folds && !made.second.is_contiguous(),
      .own = {own1.mutable_data(), own2.mutable_data()},
      .partial = partial ? partial->data<float>() : nullptr,
      .dx = dx.mutable_data(),
      .dw1 = dw1.mutable_data(),
      .dw2 = dw2.mutable_data(),
      .dw3 = dw3.mutable_data(),
      .db = db.mutable_data(),
      .rows = p.rows,
      .d = p.d,
      .type = p.type,
  };
  const CudaScope scope(y);
  launch_tanh_backward({dy.data(), y.data(), g.mutable_data(), db.mutable_data(),
                        partial ? partial->mutable_data<float>() : nullptr, p.rows, p.d, p.type},
                       scope.stream());
  if (folds) mm_out(own1, transposed(as_matrix(own.x, p)), as_matrix(g, p));
  (folds ? launch_folded_backward : launch_chain_backward)(params, scope.stream());
  return {std::move(dx), std::move(dw1), std::move(dw2), std::move(dw3), std::move(db)};
}

// What the forward kept, if these kernels can read its layout. M may be stored as its transpose.
std::optional<Made> readable(const Problem& p, const std::optional<Tensor>& kept1,
                             const std::optional<Tensor>& kept2) {
  const auto lies_well = [](const Tensor& t) { return is_aligned(t) && t.is_contiguous(); };
  if (!kept1 || !kept2 || kept1->numel() == 0 || kept2->numel() == 0) return std::nullopt;
  if (!lies_well(*kept1)) return std::nullopt;
  if (!lies_well(*kept2) && !(folding_saves(p) && lies_well(transposed(*kept2)))) return std::nullopt;
  return Made{kept1->share(), kept2->share()};
}
#endif

}  // namespace

Gradients backward(const Tensor& dy, const Tensor& x, const Tensor& w1, const Tensor& w2, const Tensor& w3,
                   const Tensor& b, const Tensor& y, bool allow_tf32, const std::optional<Tensor>& kept1,
                   const std::optional<Tensor>& kept2) {
  const Problem problem = check(x, w1, w2, w3, b);
  torch_abi::check_alike(kOp, {{"x", x}, {"dy", dy}, {"y", y}});
  for (const torch_abi::Named& one : {torch_abi::Named{"dy", dy}, {"y", y}}) {
    PLAB_CHECK(std::ranges::equal(one.tensor.sizes(), x.sizes()), kOp, ": ", one.name, " has shape ",
               torch_abi::text(one.tensor.sizes()), " but x has shape ", torch_abi::text(x.sizes()));
  }
  const auto is_kept = [](const std::optional<Tensor>& tensor) { return tensor && tensor->numel() != 0; };
  const bool has_first = is_kept(kept1), has_second = is_kept(kept2);
#ifdef PLAB_HAS_SM90A
  if (const auto own = own_operands(problem, x, w1, w2, w3)) {
    auto made = readable(problem, kept1, kept2);
    if (!made) {
      made = folding_saves(problem) ? fold_by_own_kernels(problem, *own)
                                    : chain_by_own_kernels(problem, *own, b, nullptr);
    }
    return backward_by_own_kernels(problem, *own, contiguous(dy), contiguous(y), b, *made);
  }
#endif
  Tensor dx_full = empty_like(x), dw1 = empty_like(w1), dw2 = empty_like(w2), dw3 = empty_like(w3),
         db = empty_like(b);
  if (problem.d != 0) {
    const Tensor x_dense = contiguous(x), dy_dense = contiguous(dy), y_dense = contiguous(y);
    const Tensor rows = as_matrix(x_dense, problem);
    Tensor dx = as_matrix(dx_full, problem);
    if (folding_saves(problem)) {
      Lanes lanes(x, problem);
      // cuBLAS is slow at A^T B of two row-major fp32 matrices. So G is stored as its transpose, and so is every
      // result that becomes the right operand of such a product.
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
      Tensor w23 = has_first ? kept1->share() : empty_like(w1),
             m = has_second ? kept2->share() : empty_like(w1);
      if (!has_second) {
        lanes.split();
        lanes.second([&] {
          if (!has_first) mm_out(w23, w2, w3);
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
      const Tensor h1 = has_first ? kept1->share() : mm(rows, w1);
      const Tensor h2 = has_second ? kept2->share() : mm(h1, w2);
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

}  // namespace plab::ops::heavy
