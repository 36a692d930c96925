// SPDX-License-Identifier: Apache-2.0
// Inputs of layer_norm_gelu, room for its results, and the results' errors against double. What is outside the
// rows is NaN, so that a write there is found.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <random>
#include <string>

#include "cuda_on_cpu.h"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/epilogue.cuh"

namespace plab::ops::layer_norm_gelu {

struct Shape {
  int64_t rows, cols, row_stride;
  int offset;  // elements by which x and dy miss an aligned address
  int rows_per_group;
  float mean;
  bool bias;
  float first = 0;  // of each row, unless 0
};

template <class Element>
class Matrix {
 public:
  /// Normal numbers, or NaN everywhere if scale is 0.
  Matrix(int64_t rows, int64_t cols, int64_t stride, int offset, float mean, float scale, unsigned seed)
      : cols_(cols), stride_(stride), begin_(kBeside + offset), values_(begin_ + rows * stride + kBeside) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(mean, scale);
    std::fill(values_.begin(), values_.end(), cuda::from_float<Element>(NAN));
    for (int64_t r = 0; scale > 0 && r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = cuda::from_float<Element>(draw(generator));
    }
    if (reinterpret_cast<std::uintptr_t>(values_.data()) % 16 != 0) std::abort();
  }
  Element* data() { return values_.data() + begin_; }
  Element& at(int64_t row, int64_t column) { return data()[row * stride_ + column]; }
  double value(int64_t row, int64_t column) { return cuda::to_float(at(row, column)); }
  bool is_nan_beside(int64_t rows) {
    bool nan = true;
    for (int64_t i = 0; i < static_cast<int64_t>(values_.size()); ++i) {
      if (i < begin_ || i >= begin_ + rows * cols_) nan = nan && std::isnan(cuda::to_float(values_[i]));
    }
    return nan;
  }

 private:
  static constexpr int64_t kBeside = 32;
  int64_t cols_, stride_, begin_;
  std::vector<Element> values_;
};

struct Error {
  double squares = 0, norm = 0;
  void add(double got, double exact) {
    squares += (got - exact) * (got - exact);
    norm += exact * exact;
  }
  double relative() const { return std::sqrt(squares / norm); }
};

inline double gelu(GeluForm form, double z, double& slope) {
  if (form == GeluForm::kErf) {
    const double p = 0.5 * std::erfc(-z / std::sqrt(2.0));
    slope = p + z * std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
    return z * p;
  }
  const double k = 2 * std::sqrt(2 / M_PI), gate = 1 / (1 + std::exp(-k * (z + 0.044715 * z * z * z)));
  slope = gate + z * gate * (1 - gate) * k * (1 + 3 * 0.044715 * z * z);
  return z * gate;
}

/// One problem in memory. The params are complete but for the workspace.
template <class Element>
struct Problem {
  Shape shape;
  Matrix<Element> x, dy, weight, bias, y, dx, dweight, dbias;
  std::vector<float> mean, rstd, partial;
  ForwardParams forward{};
  BackwardParams backward{};

  explicit Problem(const Shape& s)
      : shape(s),
        x(s.rows, s.cols, s.row_stride, s.offset, s.mean, 2, 1),
        dy(s.rows, s.cols, s.row_stride, s.offset, 0, 1, 2),
        weight(1, s.cols, s.cols, 0, 1, 0.3f, 3),
        bias(1, s.cols, s.cols, 0, 0, 0.3f, 4),
        y(s.rows, s.cols, s.cols, 0, 0, 0, 0),
        dx(y),
        dweight(1, s.cols, s.cols, 0, 0, 0, 0),
        dbias(dweight),
        mean(s.rows),
        rstd(s.rows) {
    for (int64_t r = 0; s.first != 0 && r < s.rows; ++r) x.at(r, 0) = cuda::from_float<Element>(s.first);
    ForwardParams& f = forward;
    f.x = x.data(), f.weight = weight.data(), f.bias = s.bias ? bias.data() : nullptr;
    f.y = y.data(), f.mean = mean.data(), f.rstd = rstd.data();
    f.rows = s.rows, f.cols = s.cols, f.x_row_stride = s.row_stride, f.eps = 1e-5;
    BackwardParams& b = backward;
    b.dy = dy.data(), b.x = f.x, b.weight = f.weight;
    b.bias = f.bias, b.mean = f.mean, b.rstd = f.rstd;
    b.dx = dx.data(), b.dweight = dweight.data(), b.dbias = dbias.data();
    b.rows = s.rows, b.cols = s.cols;
    b.x_row_stride = b.dy_row_stride = s.row_stride;
  }

  /// Room for that many rows of sums. A single one is left out: the kernel then writes dweight and dbias itself.
  void make_workspace(int64_t rows) {
    partial.assign(rows > 1 ? rows * 2 * shape.cols : 0, NAN);
    backward.partial = rows > 1 ? partial.data() : nullptr;
    backward.partial_rows = rows > 1 ? rows : 0;
  }
  template <int kColumns>
  void add_partials(int64_t rows) {
    if (rows <= 1) return;
    on_cpu::launch(static_cast<unsigned>((2 * shape.cols + kColumns - 1) / kColumns), 64, [&] {
      add_partials_kernel<Element, kColumns>(partial.data(), rows, shape.cols, dweight.data(), dbias.data());
    });
  }

  /// Prints a line: the case, the relative errors of y, dx, dweight and dbias, and the largest absolute error of
  /// a y below 1/8.
  void report(const std::string& name, GeluForm form) {
    const auto [rows, cols, row_stride, offset, rows_per_group, row_mean, with_bias, row_first] = shape;
    Error error_y, error_dx, error_dweight, error_dbias;
    double near_zero = 0;
    std::vector<double> sum_weight(cols), sum_bias(cols), h(cols), dh(cols);
    for (int64_t r = 0; r < rows; ++r) {
      double m = 0, v = 0, mean_dh = 0, mean_dh_h = 0;
      std::vector<double> row(cols);
      for (int64_t c = 0; c < cols; ++c) row[c] = x.value(r, c);
      for (int64_t c = 0; c < cols; ++c) m += row[c] / cols;
      for (int64_t c = 0; c < cols; ++c) v += std::pow(row[c] - m, 2) / cols;
      for (int64_t c = 0; c < cols; ++c) {
        const double w = weight.value(0, c);
        h[c] = (row[c] - m) / std::sqrt(v + 1e-5);
        double slope;
        const double exact = gelu(form, h[c] * w + (with_bias ? bias.value(0, c) : 0.0), slope);
        const double got = y.value(r, c);
        error_y.add(got, exact);
        if (std::abs(exact) < 0.125) near_zero = std::max(near_zero, std::abs(got - exact));
        const double dz = dy.value(r, c) * slope;
        sum_weight[c] += dz * h[c], sum_bias[c] += dz;
        dh[c] = dz * w;
        mean_dh += dh[c] / cols, mean_dh_h += dh[c] * h[c] / cols;
      }
      for (int64_t c = 0; c < cols; ++c) {
        error_dx.add(dx.value(r, c), (dh[c] - mean_dh - h[c] * mean_dh_h) / std::sqrt(v + 1e-5));
      }
    }
    for (int64_t c = 0; c < cols; ++c) {
      error_dweight.add(dweight.value(0, c), sum_weight[c]);
      error_dbias.add(dbias.value(0, c), sum_bias[c]);
    }
    const bool inside =
        y.is_nan_beside(rows) && dx.is_nan_beside(rows) && dweight.is_nan_beside(1) && dbias.is_nan_beside(1);
    std::printf("%s%s\t%.3e\t%.3e\t%.3e\t%.3e\t%.3e\n", name.c_str(),
                inside ? "" : ", WRITES BESIDE THE ROWS", error_y.relative(), error_dx.relative(),
                error_dweight.relative(), error_dbias.relative(), near_zero);
    std::fflush(stdout);
  }
};

}  // namespace plab::ops::layer_norm_gelu
