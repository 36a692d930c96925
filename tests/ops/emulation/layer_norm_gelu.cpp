// SPDX-License-Identifier: Apache-2.0
// Runs the kernels of layer_norm_gelu on the CPU and prints, for each case, the relative errors against
// double:
//
//     <case>\t<y>\t<dx>\t<dweight>\t<dbias>\t<y near zero>
//
// The last is the largest absolute error of results below 1/8.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <random>

#include "cuda_on_cpu.h"
#include "ops/layer_norm_gelu/portable/backward.cuh"
#include "ops/layer_norm_gelu/portable/forward.cuh"

namespace plab::ops::layer_norm_gelu {

alignas(16) float4 shared[16384];

namespace {

struct Shape {
  int64_t rows, cols, row_stride;
  int offset;  // elements by which x and dy miss an aligned address
  int rows_per_group;
  float mean;
  bool bias;
  float first = 0;  // of each row, unless 0
};

template <class Element>
std::vector<Element> normal(int64_t count, float mean, float scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> draw(mean, scale);
  std::vector<Element> values(count);
  for (Element& value : values) value = cuda::from_float<Element>(draw(generator));
  return values;
}

struct Error {
  double squares = 0, norm = 0;
  void add(double got, double exact) {
    squares += (got - exact) * (got - exact);
    norm += exact * exact;
  }
  double relative() const { return std::sqrt(squares / norm); }
};

double gelu(GeluForm form, double z, double& slope) {
  if (form == GeluForm::kErf) {
    const double p = 0.5 * std::erfc(-z / std::sqrt(2.0));
    slope = p + z * std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
    return z * p;
  }
  const double k = 2 * std::sqrt(2 / M_PI), gate = 1 / (1 + std::exp(-k * (z + 0.044715 * z * z * z)));
  slope = gate + z * gate * (1 - gate) * k * (1 + 3 * 0.044715 * z * z);
  return z * gate;
}

/// kForwardStages 0: the forward goes straight into registers.
template <class Tile, class Group, Weights kWeights, int kStages, bool kOverlap, GeluForm kForm,
          int kForwardStages = kStages, class ForwardTile = Tile, class ForwardGroup = Group>
void run(const char* name, const Shape& shape) {
  using Element = typename Tile::Element;
  using Forward = ForwardConfig<ForwardTile, ForwardGroup, 1024,
                                kForwardStages == 0 ? Weights::kCached : kWeights, kForwardStages, kForm>;
  using Backward = BackwardConfig<Tile, Group, 1024, 4, kWeights, kStages, kOverlap, kForm>;
  const auto [rows, cols, row_stride, offset, rows_per_group, row_mean, with_bias, row_first] = shape;
  auto x = normal<Element>(rows * row_stride + offset, row_mean, 2, 1);
  for (int64_t r = 0; row_first != 0 && r < rows; ++r)
    x[offset + r * row_stride] = cuda::from_float<Element>(row_first);
  const auto dy = normal<Element>(rows * row_stride + offset, 0, 1, 2);
  const auto weight = normal<Element>(cols, 1, 0.3f, 3), bias = normal<Element>(cols, 0, 0.3f, 4);
  std::vector<Element> y(rows * cols), dx(rows * cols), dweight(cols), dbias(cols);
  std::vector<float> mean(rows), rstd(rows);
  const int threads_per_row =
      static_cast<int>((cols + 32 * Tile::kElements - 1) / (32 * Tile::kElements) * 32);
  const int groups = Group::kIsWarp ? 4 : 1;
  const int64_t runs = (rows + rows_per_group - 1) / rows_per_group;
  const auto blocks = static_cast<unsigned>((runs + groups - 1) / groups);
  std::vector<float> partial(blocks * 2 * cols, NAN);

  ForwardParams f{};
  f.x = x.data() + offset, f.weight = weight.data(), f.bias = with_bias ? bias.data() : nullptr;
  f.y = y.data(), f.mean = mean.data(), f.rstd = rstd.data();
  f.rows = rows, f.cols = cols, f.x_row_stride = row_stride, f.eps = 1e-5;
  const RowOrder order{rows_per_group, false, 1, 1.0f / static_cast<float>(cols)};
  if constexpr (kForwardStages == 0) {
    const unsigned threads = ForwardGroup::kIsWarp ? 128 : threads_per_row;
    const int64_t run = Forward::kOneRow ? 1 : rows_per_group, of_block = run * Forward::kRowsAtATime;
    on_cpu::launch(static_cast<unsigned>((rows + of_block - 1) / of_block), threads,
                   [&] { forward_direct_kernel<Forward>(f, order); });
  } else {
    on_cpu::launch(blocks, threads_per_row * groups, [&] { forward_kernel<Forward>(f, order); });
  }
  BackwardParams b{};
  b.dy = dy.data() + offset, b.x = f.x, b.weight = f.weight, b.bias = f.bias, b.mean = f.mean,
  b.rstd = f.rstd;
  b.dx = dx.data(), b.partial = partial.data(), b.dweight = dweight.data(), b.dbias = dbias.data();
  b.rows = rows, b.cols = cols, b.x_row_stride = row_stride, b.dy_row_stride = row_stride;
  on_cpu::launch(blocks, threads_per_row * groups, [&] { backward_kernel<Backward>(b, order); });
  on_cpu::launch(static_cast<unsigned>((2 * cols + 31) / 32), 64, [&] {
    add_partials_kernel<Element, 32>(partial.data(), blocks, cols, dweight.data(), dbias.data());
  });
  std::vector<Element> again(2 * cols);
  on_cpu::launch(static_cast<unsigned>((2 * cols + 7) / 8), 32, [&] {
    add_partials_kernel<Element, 8>(partial.data(), blocks, cols, again.data(), again.data() + cols);
  });

  Error error_y, error_dx, error_dweight, error_dbias;
  double near_zero = 0;
  std::vector<double> sum_weight(cols), sum_bias(cols), h(cols), dh(cols);
  for (int64_t r = 0; r < rows; ++r) {
    const Element *row = x.data() + offset + r * row_stride, *gradient = dy.data() + offset + r * row_stride;
    double m = 0, v = 0, mean_dh = 0, mean_dh_h = 0;
    for (int64_t c = 0; c < cols; ++c) m += cuda::to_float(row[c]) / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c)
      v += std::pow(cuda::to_float(row[c]) - m, 2) / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const double w = cuda::to_float(weight[c]);
      h[c] = (cuda::to_float(row[c]) - m) / std::sqrt(v + 1e-5);
      double slope;
      const double exact = gelu(kForm, h[c] * w + (with_bias ? cuda::to_float(bias[c]) : 0.0f), slope);
      const double got = cuda::to_float(y[r * cols + c]);
      error_y.add(got, exact);
      if (std::abs(exact) < 0.125) near_zero = std::max(near_zero, std::abs(got - exact));
      const double dz = cuda::to_float(gradient[c]) * slope;
      sum_weight[c] += dz * h[c], sum_bias[c] += dz;
      dh[c] = dz * w;
      mean_dh += dh[c] / cols, mean_dh_h += dh[c] * h[c] / cols;
    }
    for (int64_t c = 0; c < cols; ++c) {
      error_dx.add(cuda::to_float(dx[r * cols + c]),
                   (dh[c] - mean_dh - h[c] * mean_dh_h) / std::sqrt(v + 1e-5));
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    error_dweight.add(cuda::to_float(dweight[c]), sum_weight[c]);
    error_dbias.add(cuda::to_float(dbias[c]), sum_bias[c]);
    error_dweight.add(cuda::to_float(again[c]), sum_weight[c]);
    error_dbias.add(cuda::to_float(again[cols + c]), sum_bias[c]);
  }
  std::printf("%s\t%.3e\t%.3e\t%.3e\t%.3e\t%.3e\n", name, error_y.relative(), error_dx.relative(),
              error_dweight.relative(), error_dbias.relative(), near_zero);
  std::fflush(stdout);
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
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

int main() { plab::ops::layer_norm_gelu::run_all(); }
