// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu on the CPU: row by row, with torch's threads over pieces of the rows. Sums are kept in double:
// the loops are bound by erfc, so the wider additions cost nothing. GELU uses erfc and not 1 + erf, which cancels
// for negative z.
#include <cmath>
#include <numbers>
#include <vector>

#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "torch_abi/parallel.h"

namespace plab::ops::layer_norm_gelu {
namespace {

constexpr int64_t kGrainElements = 16 * 1024;
constexpr int64_t kMaxPieces = 64;  // of the backward's sums: a number that does not depend on the threads

template <class T>
struct GeluErf {
  static T value(T z) { return T(0.5) * z * std::erfc(-z * T(1 / std::numbers::sqrt2)); }
  static T derivative(T z) {
    const T density = std::exp(T(-0.5) * z * z) * T(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return T(0.5) * std::erfc(-z * T(1 / std::numbers::sqrt2)) + z * density;
  }
};

template <class T>
struct GeluTanh {
  static constexpr T k2K = T(std::numbers::sqrt2 * 2 * std::numbers::inv_sqrtpi), kCubic = T(0.044715);
  static T gate(T z) { return 1 / (1 + std::exp(-k2K * z * (1 + kCubic * z * z))); }
  static T value(T z) { return z * gate(z); }
  static T derivative(T z) {
    const T g = gate(z);
    return g + z * g * gate(-z) * k2K * (1 + 3 * kCubic * z * z);  // 1 - gate(z) = gate(-z)
  }
};

/// Sum of f(c) over 0 <= c < count, in blocks: the rounding of one long chain of additions would show in
/// fp64.
template <class Function>
double blocked_sum(int64_t count, Function&& f) {
  constexpr int64_t kBlock = 64;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = begin + kBlock < count ? begin + kBlock : count;
    double block = 0;
    for (int64_t c = begin; c < end; ++c) block += f(c);
    total += block;
  }
  return total;
}

template <class T, class Gelu>
void forward_rows(const ForwardParams& p, int64_t begin, int64_t end) {
  using A = Accum<T>;
  const auto* weight = static_cast<const T*>(p.weight);
  const auto* bias = static_cast<const T*>(p.bias);
  const double cols = static_cast<double>(p.cols);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_row_stride;
    T* y = static_cast<T*>(p.y) + row * p.cols;
    if (p.residual != nullptr) {
      const T* residual = static_cast<const T*>(p.residual) + row * p.residual_row_stride;
      T* sum = static_cast<T*>(p.sum) + row * p.cols;
      for (int64_t c = 0; c < p.cols; ++c)
        sum[c] = static_cast<T>(static_cast<A>(x[c]) + static_cast<A>(residual[c]));
      x = sum;
    }
    const double mean = blocked_sum(p.cols, [&](int64_t c) { return static_cast<A>(x[c]); }) / cols;
    const double variance = blocked_sum(p.cols,
                                        [&](int64_t c) {
                                          const double d = static_cast<A>(x[c]) - mean;
                                          return d * d;
                                        }) /
                            cols;
    const double rstd = 1 / std::sqrt(variance + p.eps);
    static_cast<A*>(p.mean)[row] = static_cast<A>(mean);
    static_cast<A*>(p.rstd)[row] = static_cast<A>(rstd);
    for (int64_t c = 0; c < p.cols; ++c) {
      const A h = static_cast<A>((static_cast<A>(x[c]) - mean) * rstd);
      const A z = h * static_cast<A>(weight[c]) + (bias != nullptr ? static_cast<A>(bias[c]) : A(0));
      y[c] = static_cast<T>(Gelu::value(z));
    }
  }
}

/// dx of these rows; adds their parts of dweight and dbias to `sums` (2 * cols).
template <class T, class Gelu>
void backward_rows(const BackwardParams& p, int64_t begin, int64_t end, Accum<T>* sums,
                   std::vector<Accum<T>>& scratch) {
  using A = Accum<T>;
  const auto* weight = static_cast<const T*>(p.weight);
  const auto* bias = static_cast<const T*>(p.bias);
  A* dweight = sums;
  A* dbias = sums + p.cols;
  A* h = scratch.data();
  A* dh = h + p.cols;
  const double cols = static_cast<double>(p.cols);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.x_row_stride;
    const T* dy = static_cast<const T*>(p.dy) + row * p.dy_row_stride;
    T* dx = static_cast<T*>(p.dx) + row * p.cols;
    const A mean = static_cast<const A*>(p.mean)[row], rstd = static_cast<const A*>(p.rstd)[row];
    for (int64_t c = 0; c < p.cols; ++c) {
      const A w = static_cast<A>(weight[c]);
      h[c] = (static_cast<A>(x[c]) - mean) * rstd;
      const A z = h[c] * w + (bias != nullptr ? static_cast<A>(bias[c]) : A(0));
      const A dz = static_cast<A>(dy[c]) * Gelu::derivative(z);
      dweight[c] += dz * h[c];
      dbias[c] += dz;
      dh[c] = dz * w;
    }
    const A mean_dh = static_cast<A>(blocked_sum(p.cols, [&](int64_t c) { return dh[c]; }) / cols);
    const A mean_dh_h = static_cast<A>(blocked_sum(p.cols, [&](int64_t c) { return dh[c] * h[c]; }) / cols);
    const T* dsum = p.dsum == nullptr ? nullptr : static_cast<const T*>(p.dsum) + row * p.dsum_row_stride;
    for (int64_t c = 0; c < p.cols; ++c) {
      const A elsewhere = dsum == nullptr ? A(0) : static_cast<A>(dsum[c]);
      dx[c] = static_cast<T>(rstd * (dh[c] - mean_dh - h[c] * mean_dh_h) + elsewhere);
    }
  }
}

int64_t row_grain(int64_t cols) { return cols < kGrainElements ? kGrainElements / cols : 1; }

template <class T, class Gelu>
void backward_all(const BackwardParams& p) {
  using A = Accum<T>;
  const int64_t pieces = p.partial_rows;
  A* partial = static_cast<A*>(p.partial);
  torch_abi::parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<A> scratch(2 * p.cols);
    for (int64_t piece = begin; piece < end; ++piece) {
      A* sums = partial + piece * 2 * p.cols;
      for (int64_t c = 0; c < 2 * p.cols; ++c) sums[c] = 0;
      backward_rows<T, Gelu>(p, piece * p.rows / pieces, (piece + 1) * p.rows / pieces, sums, scratch);
    }
  });
  auto* dweight = static_cast<T*>(p.dweight);
  auto* dbias = static_cast<T*>(p.dbias);
  torch_abi::parallel_for(2 * p.cols, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double total = 0;
      for (int64_t piece = 0; piece < pieces; ++piece) total += partial[piece * 2 * p.cols + c];
      (c < p.cols ? dweight[c] : dbias[c - p.cols]) = static_cast<T>(static_cast<A>(total));
    }
  });
}

}  // namespace

void forward_cpu(const ForwardParams& params) {
  dispatch_host(params.element, [&]<class T>(Tag<T>) {
    torch_abi::parallel_for(params.rows, row_grain(params.cols), [&](int64_t begin, int64_t end) {
      if (params.form == GeluForm::kErf) {
        forward_rows<T, GeluErf<Accum<T>>>(params, begin, end);
      } else {
        forward_rows<T, GeluTanh<Accum<T>>>(params, begin, end);
      }
    });
  });
}

int64_t backward_workspace_rows_cpu(const BackwardParams& params) {
  const int64_t grain = row_grain(params.cols);
  const int64_t pieces = (params.rows + grain - 1) / grain;
  return pieces < kMaxPieces ? pieces : kMaxPieces;
}

void backward_cpu(const BackwardParams& params) {
  dispatch_host(params.element, [&]<class T>(Tag<T>) {
    if (params.form == GeluForm::kErf) {
      backward_all<T, GeluErf<Accum<T>>>(params);
    } else {
      backward_all<T, GeluTanh<Accum<T>>>(params);
    }
  });
}

}  // namespace plab::ops::layer_norm_gelu
