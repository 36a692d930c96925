// SPDX-License-Identifier: Apache-2.0
// Runs the tasks of the CPU path with every kind of products, whatever the CPU has: vectors of 16, 32 and 64 bytes, and
// matrix tiles (AMX), whose instructions are functions here. Compiled with the address sanitizer, which sees a workspace
// that is too small. Prints the largest errors against double, relative to the largest value:
//
//     <case>\t<out>\t<lse>\t<dq>\t<dk>\t<dv>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

namespace tiles {

struct Config {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
Config config{};
std::uint32_t registers[8][16][16];

void check(int tile) {
  if (config.palette != 1 || config.rows[tile] != 16 || config.row_bytes[tile] != 64) std::abort();
}
void load_config(const void* from) { std::memcpy(&config, from, sizeof config); }
void release() { config = {}; }
void zero(int tile) { check(tile), std::memset(registers[tile], 0, sizeof registers[tile]); }
void load(int tile, const void* from, std::size_t step) {
  check(tile);
  for (int row = 0; row < 16; ++row)
    std::memcpy(registers[tile][row], static_cast<const char*>(from) + row * step, 64);
}
void store(int tile, void* to, std::size_t step) {
  check(tile);
  for (int row = 0; row < 16; ++row)
    std::memcpy(static_cast<char*>(to) + row * step, registers[tile][row], 64);
}
float of(std::uint32_t pair, int which) {
  return std::bit_cast<float>(which ? pair & 0xffff0000 : pair << 16);
}
void multiply(int to, int left, int right) {
  check(to), check(left), check(right);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float sum = std::bit_cast<float>(registers[to][m][n]);
      for (int k = 0; k < 16; ++k)
        for (int half = 0; half < 2; ++half)
          sum += of(registers[left][m][k], half) * of(registers[right][k][n], half);
      registers[to][m][n] = std::bit_cast<std::uint32_t>(sum);
    }
}

}  // namespace tiles

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) tiles::load_config(from)
#define _tile_release() tiles::release()
#define _tile_loadd(tile, from, step) tiles::load(tile, from, step)
#define _tile_stored(tile, to, step) tiles::store(tile, to, step)
#define _tile_zero(tile) tiles::zero(tile)
#define _tile_dpbf16ps(to, left, right) tiles::multiply(to, left, right)
#define PLAB_AMX

#include "ops/attention/cpu/amx_kernels.h"

namespace plab::ops::attention::cpu {
namespace {

// Of the tiles' task what the CPU path calls: it takes the registers and gives them back.
struct TilesTask : Task<BFloat16, float, Amx> {
  static constexpr auto fwd = &AmxKernels::fwd_tiles;
  static constexpr auto bwd = &AmxKernels::bwd_tiles;
};

struct Case {
  const char* name;
  int heads, kv_heads, dim, dim_v, q_len, k_len;
  int left = -1, right = -1;
  double scale = 0.2, softcap = 0;
  bool sink = false, in_parts = false;
};

template <class T>
struct Tensor {
  int rows, heads, dim;
  std::vector<T> values;
  Tensor(int rows, int heads, int dim)
      : rows(rows), heads(heads), dim(dim), values(size_t(rows) * heads * dim) {}
  View view() { return {values.data(), 0, int64_t{heads} * dim, dim}; }
  T& at(int row, int head, int column) { return values[(size_t(row) * heads + head) * dim + column]; }
  void fill(unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0, 1);
    for (T& one : values) one = T(static_cast<float>(BFloat16(draw(generator))));
  }
};

double sink_of(int head) { return head % 2 ? 1.5 : -std::numeric_limits<double>::infinity(); }

template <class T, class Acc>
struct Results {
  Tensor<T> out, dq, dk, dv;
  std::vector<Acc> lse, delta;
};

template <class T, class Acc, class Products>
Results<T, Acc> run(const Case& c) {
  using Task = std::conditional_t<std::is_same_v<Products, Amx>, TilesTask, cpu::Task<T, Acc, Products>>;
  Tensor<T> q(c.q_len, c.heads, c.dim), k(c.k_len, c.kv_heads, c.dim), v(c.k_len, c.kv_heads, c.dim_v),
      dout(c.q_len, c.heads, c.dim_v);
  q.fill(1), k.fill(2), v.fill(3), dout.fill(4);
  Results<T, Acc> r{dout, q, k, v, std::vector<Acc>(c.heads * c.q_len), std::vector<Acc>(c.heads * c.q_len)};
  for (auto* one : {&r.out, &r.dq, &r.dk, &r.dv})  // each number is written
    std::fill(one->values.begin(), one->values.end(), T(std::numeric_limits<float>::quiet_NaN()));
  std::vector<Acc> sink(c.heads);
  for (int h = 0; h < c.heads; ++h) sink[h] = Acc(sink_of(h));
  const Problem problem{ElementType::kFloat32,
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
                        c.scale,
                        c.softcap,
                        c.sink ? sink.data() : nullptr};
  const RowLayout rows{int64_t{c.heads} * c.q_len, c.q_len};
  const FwdParams forward{problem, q.view(), k.view(), v.view(), r.out.view(), r.lse.data(), rows};
  const Sequence s{0, 0, 0, c.q_len, c.k_len};
  {
    Scratch<Acc> scratch(Task::fwd_scratch(problem.widest()));
    for (int h = 0; h < c.heads; ++h)
      for (int64_t block = 0; block < blocks_of(c.q_len); ++block) Task::fwd(forward, s, h, block, scratch);
  }
  BwdParams backward{problem,        q.view(),    k.view(),    v.view(),     r.out.view(), dout.view(),
                     r.dq.view(),    r.dk.view(), r.dv.view(), r.lse.data(), nullptr,      nullptr,
                     r.delta.data(), rows,        nullptr,     false,        nullptr};
  for (int h = 0; h < c.heads; ++h) Task::statistics(backward, s, h);
  const int64_t wide = padded(problem.widest()), group = c.heads / c.kv_heads,
                part = c.in_parts ? kBlock : blocks_of(c.k_len) * kBlock, parts = (c.k_len + part - 1) / part,
                share = group * c.q_len * wide;
  Scratch<Acc> scratch(Task::bwd_scratch(problem.widest(), part));
  std::vector<Acc> shares(c.in_parts ? parts * share : 0);
  for (int kv = 0; kv < c.kv_heads; ++kv) {
    for (int64_t i = 0; i < parts; ++i)
      Task::bwd(backward, s, kv, i * part, std::min<int64_t>((i + 1) * part, c.k_len),
                c.in_parts ? shares.data() + i * share : nullptr, c.q_len * wide, scratch);
    for (int64_t member = 0; c.in_parts && member < group; ++member)
      Task::sum_shares(backward, s, kv * group + member, shares.data() + member * c.q_len * wide, share,
                       parts);
  }
  return r;
}

// The formulas themselves, pair by pair; nothing of what is tested.
Results<double, double> exactly(const Case& c) {
  Tensor<double> q(c.q_len, c.heads, c.dim), k(c.k_len, c.kv_heads, c.dim), v(c.k_len, c.kv_heads, c.dim_v),
      dout(c.q_len, c.heads, c.dim_v), out = dout, dq = q, dk = k, dv = v;
  q.fill(1), k.fill(2), v.fill(3), dout.fill(4);
  Results<double, double> r{out, dq, dk, dv, std::vector<double>(c.heads * c.q_len), {}};
  const int shift = c.k_len - c.q_len;
  for (int h = 0; h < c.heads; ++h) {
    const int kv = h / (c.heads / c.kv_heads);
    for (int i = 0; i < c.q_len; ++i) {
      std::vector<double> p(c.k_len), slope(c.k_len, 1), dp(c.k_len);
      double sum = c.sink && h % 2 ? std::exp(sink_of(h)) : 0, delta = 0;
      for (int j = 0; j < c.k_len; ++j) {
        double score = 0;
        for (int d = 0; d < c.dim; ++d) score += q.at(i, h, d) * k.at(j, kv, d);
        score *= c.scale;
        if (c.softcap > 0) {
          const double bent = std::tanh(score / c.softcap);
          score = c.softcap * bent, slope[j] = 1 - bent * bent;
        }
        const bool seen =
            (c.left < 0 || j >= i + shift - c.left) && (c.right < 0 || j <= i + shift + c.right);
        p[j] = seen ? std::exp(score) : 0, sum += p[j];
      }
      r.lse[h * c.q_len + i] = std::log(sum);
      for (int j = 0; j < c.k_len; ++j) {
        p[j] = sum > 0 ? p[j] / sum : 0;
        for (int d = 0; d < c.dim_v; ++d) {
          r.out.at(i, h, d) += p[j] * v.at(j, kv, d), dp[j] += dout.at(i, h, d) * v.at(j, kv, d);
          r.dv.at(j, kv, d) += p[j] * dout.at(i, h, d);
        }
        delta += p[j] * dp[j];
      }
      for (int j = 0; j < c.k_len; ++j) {
        const double ds = p[j] * (dp[j] - delta) * slope[j] * c.scale;
        for (int d = 0; d < c.dim; ++d)
          r.dq.at(i, h, d) += ds * k.at(j, kv, d), r.dk.at(j, kv, d) += ds * q.at(i, h, d);
      }
    }
  }
  return r;
}

template <class Products>
void compare(const char* kind, const Case& c) {
  const auto got = run<BFloat16, float, Products>(c);
  const auto exact = exactly(c);
  std::printf("%s %s", kind, c.name);
  const auto print = [](const auto& ours, const auto& truth) {
    double error = 0, top = 0;
    for (size_t i = 0; i < truth.size(); ++i) {
      const double mine = static_cast<float>(ours[i]);
      if (std::isinf(truth[i]) && mine == truth[i]) continue;
      const double off = std::abs(mine - truth[i]);
      error = off >= error || !(off >= 0) ? off : error;  // a NaN stays
      top = std::max(top, std::abs(truth[i]));
    }
    std::printf("\t%.3e", top > 0 ? error / top : error);
  };
  print(got.out.values, exact.out.values), print(got.lse, exact.lse);
  print(got.dq.values, exact.dq.values), print(got.dk.values, exact.dk.values),
      print(got.dv.values, exact.dv.values);
  std::printf("\n");
}

void run_all() {
  const Case cases[] = {
      {"causal, grouped", 2, 1, 40, 40, 70, 100, -1, 0},
      {"a window, values of another head_dim", 2, 2, 64, 24, 130, 90, 20, 7},
      {"a sink, a soft cap, rows that see nothing", 2, 2, 33, 33, 90, 50, -1, 0, 0.2, 3, true},
      {"in parts, wider values", 2, 1, 16, 70, 65, 200, -1, -1, 0.2, 0, true, true},
      {"one row, one key", 1, 1, 8, 8, 1, 1},
  };
  for (const Case& c : cases) {
    compare<Fma<BFloat16, float, 16>>("vectors of 16:", c);
    compare<Fma<BFloat16, float, 32>>("vectors of 32:", c);
    compare<Fma<BFloat16, float, 64>>("vectors of 64:", c);
    compare<Amx>("tiles:", c);
  }
  if (tiles::config.palette != 0) std::abort();  // not given back
}

}  // namespace
}  // namespace plab::ops::attention::cpu

int main() { plab::ops::attention::cpu::run_all(); }
