// SPDX-License-Identifier: Apache-2.0
// Runs the Hopper backward above head_dim 128 on the CPU, and prints for each case the largest errors against double,
// relative to the largest value:
//
//     <case>\t<dq>\t<dk>\t<dv>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "cuda_on_cpu.h"

using std::max;
using std::min;

#include "ops/attention/sm90/wide/kv_kernel.cuh"
#include "ops/attention/sm90/wide/q_kernel.cuh"

namespace plab::ops::attention::sm90 {

unsigned char memory[1];

namespace {

constexpr double kLn2Exact = 0.69314718055994530942;

struct Case {
  const char* name;
  int heads, kv_heads, dim, dim_v, q_len, k_len;
  int left = -1, right = -1;
};

template <class Element>
struct Rows {  // (rows, heads, dim), followed by NaN
  int rows, heads, dim;
  std::vector<Element> values;
  Rows(int rows, int heads, int dim)
      : rows(rows), heads(heads), dim(dim), values(size_t(rows) * heads * (dim + 8) + 8) {
    std::fill(values.begin(), values.end(), Element(std::numeric_limits<float>::quiet_NaN()));
  }
  void fill(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0, 1);
    for (int i = 0; i < rows; ++i)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < dim; ++d) at(i, h, d) = Element(draw(generator));
  }
  View view() { return {values.data(), 0, int64_t{heads} * (dim + 8), dim + 8}; }
  Element& at(int row, int head, int d) { return values[(size_t(row) * heads + head) * (dim + 8) + d]; }
};

template <class Kv, class Q>
void run(const Case& c) {
  using Element = typename Kv::Element;
  constexpr double kScale = 0.1;
  Rows<Element> q(c.q_len, c.heads, c.dim), dq = q, k(c.k_len, c.kv_heads, c.dim), dk = k;
  Rows<Element> v(c.k_len, c.kv_heads, c.dim_v), dv = v, dout(c.q_len, c.heads, c.dim_v);
  q.fill(1), k.fill(2), v.fill(3), dout.fill(4);
  std::vector<float> lse(c.heads * c.q_len), delta(c.heads * c.q_len);
  const int group = c.heads / c.kv_heads, shift = c.k_len - c.q_len;
  std::vector<double> exact_q(q.values.size()), exact_k(k.values.size()), exact_v(v.values.size());
  const auto place = [](const auto& of, int row, int head) {
    return (size_t(row) * of.heads + head) * (of.dim + 8);
  };
  for (int h = 0; h < c.heads; ++h) {
    for (int i = 0; i < c.q_len; ++i) {
      std::vector<double> p(c.k_len), dp(c.k_len);
      double most = -INFINITY, sum = 0, d_row = 0;
      for (int j = 0; j < c.k_len; ++j) {
        double score = 0;
        for (int d = 0; d < c.dim; ++d)
          score += double(float(q.at(i, h, d))) * double(float(k.at(j, h / group, d)));
        const bool seen =
            (c.left < 0 || j >= i + shift - c.left) && (c.right < 0 || j <= i + shift + c.right);
        p[j] = seen ? score * kScale : -INFINITY, most = std::max(most, p[j]);
      }
      for (double& one : p) one = one == -INFINITY ? 0 : std::exp(one - most), sum += one;
      for (int j = 0; j < c.k_len; ++j) {
        p[j] = sum > 0 ? p[j] / sum : 0;
        for (int d = 0; d < c.dim_v; ++d)
          dp[j] += double(float(dout.at(i, h, d))) * double(float(v.at(j, h / group, d)));
        d_row += p[j] * dp[j];
      }
      lse[h * c.q_len + i] = sum > 0 ? float((most + std::log(sum)) / kLn2Exact) : INFINITY;
      delta[h * c.q_len + i] = float(d_row);
      for (int j = 0; j < c.k_len; ++j) {
        const double ds = p[j] * (dp[j] - d_row) * kScale;
        for (int d = 0; d < c.dim; ++d) {
          exact_q[place(q, i, h) + d] += ds * double(float(k.at(j, h / group, d)));
          exact_k[place(k, j, h / group) + d] += ds * double(float(q.at(i, h, d)));
        }
        for (int d = 0; d < c.dim_v; ++d)
          exact_v[place(v, j, h / group) + d] += p[j] * double(float(dout.at(i, h, d)));
      }
    }
  }
  BwdParams params{};
  params.problem = {ElementType::kFloat16,
                    1,
                    c.heads,
                    c.kv_heads,
                    c.dim,
                    c.dim_v,
                    c.q_len,
                    c.k_len,
                    nullptr,
                    nullptr,
                    c.left,
                    c.right,
                    kScale,
                    0,
                    nullptr};
  params.q = q.view(), params.k = k.view(), params.v = v.view(), params.dout = dout.view();
  params.dq = dq.view(), params.dk = dk.view(), params.dv = dv.view();
  params.lse_log2 = lse.data(), params.delta = delta.data();
  params.rows = {int64_t{c.heads} * c.q_len, c.q_len};
  const auto launch = [&](auto config, const TileGrid& grid, auto kernel) {
    using Config = decltype(config);
    const BwdMaps maps = make_bwd_maps(params, Config::kTileQ, Config::kTileKv);
    ptx::mbarriers.clear();
    std::fill(ptx::cluster_memory.begin(), ptx::cluster_memory.end(), 0xff);
    on_cpu::launch(unsigned(blocks(grid)), Config::kThreads, [&] { kernel(params, grid, maps); });
  };
  launch(Kv{}, make_key_grid<Kv>(params.problem), attention_bwd_wide_sm90_kernel<Kv>);
  launch(Q{}, make_tile_grid(params.problem, true, Q::kTileQ, 1 << 20), attention_bwd_query_sm90_kernel<Q>);
  std::printf("%s", c.name);
  const auto compare = [&](Rows<Element>& got, const std::vector<double>& exact) {
    double error = 0, top = 0;
    for (int i = 0; i < got.rows; ++i)
      for (int h = 0; h < got.heads; ++h) {
        for (int d = 0; d < got.dim; ++d) {
          const double one = exact[place(got, i, h) + d], off = std::abs(one - float(got.at(i, h, d)));
          error = off >= error || !(off >= 0) ? off : error;  // a NaN stays
          top = std::max(top, std::abs(one));
        }
        if (!std::isnan(float(got.at(i, h, got.dim)))) error = INFINITY;  // written behind the row
      }
    std::printf("\t%.3e", error / top);
  };
  compare(dq, exact_q), compare(dk, exact_k), compare(dv, exact_v);
  std::printf("\n");
  std::fflush(stdout);
}

// The kernels of wide/bwd_d192.cu, and the other one that wide/bwd_d256.cu has.
void run_all() {
  using Bf16 = __nv_bfloat16;
  using Q192 = BwdQConfig<Bf16, 192, 192, 64, false>;
  using Q128 = BwdQConfig<Bf16, 192, 128, 64, false>;
  using Ahead192 = BwdKvConfig<Bf16, 192, 192, 64, 3, false, true>;
  using Ahead128 = BwdKvConfig<Bf16, 192, 128, 64, 3, false, true>;
  using Kv256 = BwdKvConfig<Bf16, 256, 256, 64, 2, false>;
  run<Ahead128, Q128>({"bf16 d192 on 128, causal", 2, 1, 192, 128, 150, 150, -1, 0});
  run<Ahead128, Q128>({"bf16 d192 on 128, everything seen", 1, 1, 192, 128, 300, 70});
  run<Ahead192, Q192>({"bf16 d192, causal, more keys than rows", 2, 2, 184, 192, 100, 230, -1, 0});
  run<Ahead192, Q192>({"bf16 d192, a window, rows that see nothing", 1, 1, 192, 192, 200, 90, 30, 5});
  run<Ahead192, Q192>({"bf16 d192, one query tile", 4, 2, 192, 192, 20, 65});
  run<Kv256, BwdQConfig<Bf16, 256, 256, 64, false>>({"bf16 d256, causal", 2, 1, 256, 256, 140, 140, -1, 0});
}

}  // namespace
}  // namespace plab::ops::attention::sm90

int main() { plab::ops::attention::sm90::run_all(); }
