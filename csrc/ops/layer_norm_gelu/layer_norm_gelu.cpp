// SPDX-License-Identifier: Apache-2.0
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/op.h"

namespace plab::ops {
namespace {

using layer_norm_gelu::BackwardParams;
using layer_norm_gelu::ForwardParams;
using layer_norm_gelu::GeluForm;
using torch_abi::empty;
using torch_abi::empty_like;

constexpr const char* kOp = "layer_norm_gelu";

struct Problem {
  int64_t rows, cols;
  GeluForm form;
  ElementType element;
  Dtype statistics;  // of mean, rstd and the sums over rows

  int64_t statistics_bytes() const { return statistics == Dtype::kFloat64 ? 8 : 4; }
};

GeluForm gelu_form(const std::string& approximate) {
  if (approximate == "none") return GeluForm::kErf;
  PLAB_CHECK(approximate == "tanh", kOp, ": approximate is '", approximate, "', expected 'none' or 'tanh'");
  return GeluForm::kTanh;
}

void check_vector(const torch_abi::Named& vector, const Tensor& x) {
  torch_abi::check_alike(kOp, {{"x", x}, vector});
  const int64_t cols = x.size(-1);
  const auto shape = vector.tensor.sizes();
  if (shape.size() == 1 && shape[0] == cols) return;
  if (shape.size() == 1) {
    torch_abi::throw_value_error(kOp, ": ", vector.name, " has ", shape[0],
                                 " elements but x has last dimension ", cols);
  }
  torch_abi::throw_value_error(kOp, ": ", vector.name, " has shape ", torch_abi::text(shape),
                               ", expected one dimension of ", cols, " elements");
}

Problem check(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::string& approximate) {
  const GeluForm form = gelu_form(approximate);
  PLAB_CHECK(x.dim() >= 1, kOp, ": x has no dimensions, expected at least one");
  const int64_t cols = x.size(-1);
  PLAB_CHECK(cols >= 1, kOp, ": x has last dimension 0, and an empty row has no mean");
  check_vector({"weight", weight}, x);
  if (bias) check_vector({"bias", *bias}, x);
  const ElementType element = element_type(kOp, x);
  const Dtype statistics = element == ElementType::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  return {x.numel() / cols, cols, form, element, statistics};
}

/// A tensor as rows of its last dimension, all one stride apart: the tensor itself if its strides allow it, else
/// a copy.
struct Rows {
  Tensor tensor;
  int64_t stride;
};

Rows as_rows(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t cols = sizes.back();
  int64_t stride = 0;    // of a row; 0: no dimension seen yet
  int64_t expected = 0;  // stride of the next dimension outwards
  bool regular = cols == 1 || strides.back() == 1;
  for (int64_t i = tensor.dim() - 2; i >= 0 && regular; --i) {
    if (sizes[i] == 1) continue;
    if (stride == 0) {
      stride = strides[i];
      regular = stride >= cols;  // rows of an expanded tensor share memory and are rare: copied
    } else {
      regular = strides[i] == expected;
    }
    expected = strides[i] * sizes[i];
  }
  if (regular) return {tensor.share(), stride == 0 ? cols : stride};
  return {torch_abi::contiguous(tensor), cols};
}

const void* data_or_null(const std::optional<Tensor>& tensor) { return tensor ? tensor->data() : nullptr; }

std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return torch_abi::contiguous(*tensor);
}

/// Fills y and the statistics, and with a residual `sum`; x and the residual have the same shape.
void run_forward(const Problem& problem, const Tensor& x, const Tensor* residual, const Tensor& weight,
                 const std::optional<Tensor>& bias, double eps, Tensor& y, Tensor* sum, Tensor& statistics) {
  if (problem.rows == 0) return;
  const Rows rows = as_rows(x);
  const Tensor dense_weight = torch_abi::contiguous(weight);
  const std::optional<Tensor> dense_bias = contiguous(bias);
  ForwardParams params{};
  params.x = rows.tensor.data();
  params.weight = dense_weight.data();
  params.bias = data_or_null(dense_bias);
  params.y = y.mutable_data();
  params.mean = statistics.mutable_data();
  params.rstd = static_cast<char*>(params.mean) + problem.rows * problem.statistics_bytes();
  params.rows = problem.rows;
  params.cols = problem.cols;
  params.x_row_stride = rows.stride;
  params.eps = eps;
  params.form = problem.form;
  params.element = problem.element;
  std::optional<Rows> residual_rows;
  if (residual != nullptr) {
    residual_rows = as_rows(*residual);
    params.residual = residual_rows->tensor.data();
    params.residual_row_stride = residual_rows->stride;
    params.sum = sum->mutable_data();
  }
  if (x.device().is_cpu()) {
    layer_norm_gelu::forward_cpu(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(x);
    layer_norm_gelu::launch_forward(params, scope.stream());
#endif
  }
}

/// The mean of every row, then rstd of every row: (2, the leading dimensions of x).
std::vector<int64_t> statistics_shape(const Tensor& x) {
  std::vector<int64_t> shape{2};
  const auto leading = x.sizes().first(x.dim() - 1);
  shape.insert(shape.end(), leading.begin(), leading.end());
  return shape;
}

std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                                   double eps, const std::string& approximate) {
  const Problem problem = check(x, weight, bias, approximate);
  Tensor y = empty_like(x), statistics = empty(statistics_shape(x), problem.statistics, x.device());
  run_forward(problem, x, nullptr, weight, bias, eps, y, nullptr, statistics);
  return {std::move(y), std::move(statistics)};
}

void check_same_shape(const torch_abi::Named& tensor, const Tensor& x) {
  torch_abi::check_alike(kOp, {{"x", x}, tensor});
  PLAB_CHECK(std::ranges::equal(tensor.tensor.sizes(), x.sizes()), kOp, ": ", tensor.name, " has shape ",
             torch_abi::text(tensor.tensor.sizes()), " but x has shape ", torch_abi::text(x.sizes()));
}

std::tuple<Tensor, Tensor, Tensor> forward_residual(const Tensor& x, const Tensor& residual,
                                                    const Tensor& weight, const std::optional<Tensor>& bias,
                                                    double eps, const std::string& approximate) {
  const Problem problem = check(x, weight, bias, approximate);
  check_same_shape({"residual", residual}, x);
  Tensor y = empty_like(x), sum = empty_like(x),
         statistics = empty(statistics_shape(x), problem.statistics, x.device());
  run_forward(problem, x, &residual, weight, bias, eps, y, &sum, statistics);
  return {std::move(y), std::move(sum), std::move(statistics)};
}

void check_saved(const Tensor& statistics, const Tensor& x, const Problem& problem) {
  const std::vector<int64_t> expected = statistics_shape(x);
  PLAB_CHECK(statistics.device() == x.device() && statistics.dtype() == problem.statistics &&
                 std::ranges::equal(statistics.sizes(), expected),
             kOp, ": statistics is not what the forward returned: it has shape ",
             torch_abi::text(statistics.sizes()), " and dtype ", torch_abi::name(statistics.dtype()),
             ", expected ", torch_abi::text(expected), " and ", torch_abi::name(problem.statistics));
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                            const std::optional<Tensor>& bias, const Tensor& statistics,
                                            const std::string& approximate,
                                            const std::optional<Tensor>& dsum) {
  const Problem problem = check(x, weight, bias, approximate);
  check_same_shape({"dy", dy}, x);
  if (dsum) check_same_shape({"dsum", *dsum}, x);
  check_saved(statistics, x, problem);

  Tensor dx = empty_like(x), dweight = empty_like(weight), dbias = empty_like(weight);
  const Rows x_rows = as_rows(x), dy_rows = as_rows(dy);
  const Tensor dense_weight = torch_abi::contiguous(weight),
               dense_statistics = torch_abi::contiguous(statistics);
  const std::optional<Tensor> dense_bias = contiguous(bias);
  BackwardParams params{};
  params.dy = dy_rows.tensor.data();
  params.x = x_rows.tensor.data();
  params.weight = dense_weight.data();
  params.bias = data_or_null(dense_bias);
  params.mean = dense_statistics.data();
  params.rstd = static_cast<const char*>(params.mean) + problem.rows * problem.statistics_bytes();
  params.dx = dx.mutable_data();
  params.dweight = dweight.mutable_data();
  params.dbias = dbias.mutable_data();
  params.rows = problem.rows;
  params.cols = problem.cols;
  params.x_row_stride = x_rows.stride;
  params.dy_row_stride = dy_rows.stride;
  params.form = problem.form;
  params.element = problem.element;
  std::optional<Rows> dsum_rows;
  if (dsum) {
    dsum_rows = as_rows(*dsum);
    params.dsum = dsum_rows->tensor.data();
    params.dsum_row_stride = dsum_rows->stride;
  }
  const auto with_workspace = [&](int64_t partial_rows, auto&& run) {
    params.partial_rows = partial_rows;
    if (partial_rows == 0) return run();
    Tensor partial = empty(std::array{partial_rows, 2 * problem.cols}, problem.statistics, x.device());
    params.partial = partial.mutable_data();
    run();
  };
  if (x.device().is_cpu()) {
    with_workspace(layer_norm_gelu::backward_workspace_rows_cpu(params),
                   [&] { layer_norm_gelu::backward_cpu(params); });
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(x);
    const layer_norm_gelu::Plan plan = layer_norm_gelu::plan_backward(params);
    with_workspace(plan.workspace_rows,
                   [&] { layer_norm_gelu::launch_backward(plan, params, scope.stream()); });
#endif
  }
  return {std::move(dx), std::move(dweight), std::move(dbias)};
}

}  // namespace

std::span<const OpDef> layer_norm_gelu_ops() {
  static constexpr OpDef kOps[] = {
      {"layer_norm_gelu(Tensor x, Tensor weight, Tensor? bias, float eps, str approximate) -> "
       "(Tensor y, Tensor statistics)",
       &Box<&forward>::call},
      {"layer_norm_gelu_residual(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps, "
       "str approximate) -> (Tensor y, Tensor sum, Tensor statistics)",
       &Box<&forward_residual>::call},
      {"layer_norm_gelu_backward(Tensor dy, Tensor x, Tensor weight, Tensor? bias, Tensor statistics, "
       "str approximate, Tensor? dsum=None) -> (Tensor dx, Tensor dweight, Tensor dbias)",
       &Box<&backward>::call},
  };
  return kOps;
}

}  // namespace plab::ops
