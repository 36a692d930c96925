// SPDX-License-Identifier: Apache-2.0
// Runs the decode kernel of flash_attention on the CPU, clusters and all, and prints for each case the largest
// errors against double, relative to the largest value:
//
//     <case>\t<out>\t<lse>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <limits>
#include <random>

#include "cuda_on_cpu.h"

using std::max;
using std::min;
#include "ops/attention/sm90/decode/kernel.cuh"

namespace plab::ops::attention::sm90 {

unsigned char memory[1];

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  int batch, heads, kv_heads, dim, q_len, k_len, blocks;
  int left = -1, right = -1;
  float scale = 0.2f, softcap = 0;
  bool sink = false;
  float magnitude = 1;
  int page_size = 0, new_rows = 0;  // of a cache; page_size -1: one without pages
};

// Every row is followed by NaN: a kernel that reads behind head_dim, the last head or the last key shows it.
template <class Element>
struct Rows {
  int rows, heads, dim, pitch;
  std::vector<Element> values;
  Rows(int batch, int rows, int heads, int dim)
      : rows(rows), heads(heads), dim(dim), pitch(dim + 8), values(batch * rows * (heads + 1) * pitch + 8) {
    std::fill(values.begin(), values.end(), Element(kNaN));
    while (reinterpret_cast<std::uintptr_t>(values.data()) % 16 != 0) std::abort();
  }
  View view() {
    return {values.data(), int64_t{rows} * (heads + 1) * pitch, int64_t{heads + 1} * pitch, pitch};
  }
  Element& at(int b, int row, int head, int column) {
    return values[((int64_t{b} * rows + row) * (heads + 1) + head) * pitch + column];
  }
  void fill(int batch, float magnitude, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0, magnitude);
    for (int b = 0; b < batch; ++b)
      for (int r = 0; r < rows; ++r)
        for (int h = 0; h < heads; ++h)
          for (int c = 0; c < dim; ++c) at(b, r, h, c) = Element(draw(generator));
  }
};

// The keys of sequence b: what a cache has room for and what is used of it.
int keys_of(const Case& c, int b) { return c.page_size == 0 ? c.k_len : std::max(0, c.k_len - 7 * b); }

// A cache with pages in an order of their own; new keys lie elsewhere, and NaN where nothing is kept.
template <class Element>
struct Cache {
  int page, per_sequence;
  std::vector<int32_t> table, lengths;
  Rows<Element> pages, added;
  Cache(const Case& c, Rows<Element>& truth)
      : page(c.page_size > 0 ? c.page_size : c.k_len),
        per_sequence((c.k_len + page - 1) / page),
        table(c.batch * per_sequence),
        pages(c.batch * per_sequence, page, c.kv_heads, c.dim),
        added(c.batch, c.new_rows, c.kv_heads, c.dim) {
    const int count = c.batch * per_sequence;
    for (int i = 0; i < count; ++i) table[i] = c.page_size > 0 ? (i * 7 + 3) % count : i;
    while (c.page_size > 0 && count % 7 == 0) std::abort();  // the order above would repeat pages
    for (int b = 0; b < c.batch; ++b) {
      const int kept = std::max(0, keys_of(c, b) - c.new_rows);
      lengths.push_back(kept);
      for (int row = 0; row < kept + c.new_rows; ++row)
        for (int h = 0; h < c.kv_heads; ++h)
          for (int d = 0; d < c.dim; ++d)
            (row < kept ? at(b, row, h, d) : added.at(b, row - kept, h, d)) = truth.at(b, row, h, d);
    }
  }
  Element& at(int b, int row, int head, int column) {
    return pages.at(table[b * per_sequence + row / page], row % page, head, column);
  }
};

template <class Element>
bool same(Element a, Element b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class Element, int kHeadDim>
void run(const Case& c) {
  using Config = DecodeConfig<Element, kHeadDim>;
  Rows<Element> q(c.batch, c.q_len, c.heads, c.dim), k(c.batch, c.k_len, c.kv_heads, c.dim), v = k, out = q;
  q.fill(c.batch, c.magnitude, 1), k.fill(c.batch, 1, 2), v.fill(c.batch, 1, 3);
  std::vector<float> lse(c.batch * c.heads * c.q_len, kNaN), sink(c.heads);
  for (int h = 0; h < c.heads; ++h) sink[h] = h % 2 ? 2.f : -INFINITY;
  FwdParams params{};
  params.problem = {ElementType::kFloat16,
                    c.batch,
                    c.heads,
                    c.kv_heads,
                    c.dim,
                    c.dim,
                    c.q_len,
                    c.k_len,
                    nullptr,
                    nullptr,
                    c.left,
                    c.right,
                    c.scale,
                    c.softcap,
                    c.sink ? sink.data() : nullptr};
  params.q = q.view(), params.k = k.view(), params.v = v.view(), params.out = out.view();
  params.lse = lse.data();
  params.rows = {int64_t{c.heads} * c.q_len, c.q_len};
  std::fill(ptx::cluster_memory.begin(), ptx::cluster_memory.end(), 0xff);
  const int tiles = (c.heads / c.kv_heads * c.q_len + kDecodeRows - 1) / kDecodeRows;
  const int blocks = c.batch * c.kv_heads * tiles * c.blocks;
  double error = 0, top = 0, lse_error = 0;
  if (c.page_size == 0) {
    on_cpu::launch(
        blocks, Config::kThreads,
        [&] { attention_decode_sm90_kernel<Config, DenseKeys>(params, c.blocks, tiles, INT_MAX); }, c.blocks);
  } else {
    Cache<Element> cache_k(c, k), cache_v(c, v);
    KeyCache& cache = params.cache;
    cache.lengths = cache_k.lengths.data();
    if (c.page_size > 0) cache.pages = cache_k.table.data();
    cache.pages_stride = cache_k.per_sequence;
    cache.page_size = cache_k.page, cache.capacity = cache_k.page * cache_k.per_sequence;
    cache.new_rows = c.new_rows, cache.new_k = cache_k.added.view(), cache.new_v = cache_v.added.view();
    params.k = cache_k.pages.view(), params.v = cache_v.pages.view();
    on_cpu::launch(
        blocks, Config::kThreads,
        [&] { attention_decode_sm90_kernel<Config, CachedKeys>(params, c.blocks, tiles, INT_MAX); },
        c.blocks);
    for (int b = 0; b < c.batch; ++b)  // the cache holds the new keys, and behind them what it held before
      for (int row = 0; row < cache.capacity; ++row)
        for (int h = 0; h < c.kv_heads; ++h)
          for (int d = 0; d < c.dim; ++d) {
            const bool used = row < cache_k.lengths[b] + c.new_rows;
            const Element nan(kNaN);
            if (!same(cache_k.at(b, row, h, d), used ? k.at(b, row, h, d) : nan) ||
                !same(cache_v.at(b, row, h, d), used ? v.at(b, row, h, d) : nan))
              error = INFINITY;
          }
  }

  for (int b = 0; b < c.batch; ++b) {
    for (int h = 0; h < c.heads; ++h) {
      for (int i = 0; i < c.q_len; ++i) {
        std::vector<double> weights, row(c.dim);
        double most = c.sink ? sink[h] : -INFINITY, sum = 0;
        const int k_len = keys_of(c, b), shift = k_len - c.q_len, kv = h / (c.heads / c.kv_heads);
        for (int j = 0; j < k_len; ++j) {
          double score = 0;
          for (int d = 0; d < c.dim; ++d)
            score += double(float(q.at(b, i, h, d))) * double(float(k.at(b, j, kv, d)));
          score *= c.scale;
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          if ((c.left >= 0 && j < i + shift - c.left) || (c.right >= 0 && j > i + shift + c.right))
            score = -INFINITY;
          weights.push_back(score), most = std::max(most, score);
        }
        if (c.sink) sum += std::exp(sink[h] - most);
        for (int j = 0; j < k_len; ++j) {
          const double weight = weights[j] == -INFINITY ? 0 : std::exp(weights[j] - most);
          sum += weight;
          for (int d = 0; d < c.dim; ++d) row[d] += weight * double(float(v.at(b, j, kv, d)));
        }
        const bool nothing = most == -INFINITY;
        const double exact = most + std::log(sum), got = lse[(b * c.heads + h) * c.q_len + i];
        if (nothing ? got != -INFINITY : !(std::abs(got - exact) < 1e9)) lse_error = INFINITY;
        if (!nothing) lse_error = std::max(lse_error, std::abs(got - exact));
        for (int d = 0; d < c.dim; ++d) {
          const double expected = nothing ? 0 : row[d] / sum,
                       off = std::abs(expected - float(out.at(b, i, h, d)));
          error = off >= error || !(off >= 0) ? off : error;  // a NaN stays
          top = std::max(top, std::abs(expected));
        }
        if (!std::isnan(float(out.at(b, i, h, c.dim)))) error = INFINITY;  // written behind the row
      }
    }
  }
  std::printf("%s\t%.3e\t%.3e\n", c.name, top > 0 ? error / top : error, lse_error);
  std::fflush(stdout);
}

void run_all() {
  using Bf16 = __nv_bfloat16;
  run<Bf16, 64>({"bf16 one row, one block", 2, 2, 2, 64, 1, 150, 1});
  run<Bf16, 128>({"bf16 grouped heads, four blocks", 1, 8, 1, 128, 1, 300, 4});
  run<__half, 64>({"fp16 rows of a draft, causal, two blocks", 1, 4, 2, 56, 3, 131, 2, -1, 0});
  run<__half, 64>({"fp16 sixteen rows, a window", 1, 4, 1, 64, 4, 90, 2, 20, 3});
  run<Bf16, 64>({"bf16 fewer keys than warps", 1, 2, 1, 64, 2, 5, 2, -1, 0});
  run<Bf16, 64>({"bf16 first rows see nothing", 1, 2, 2, 64, 5, 2, 1, -1, 0, 0.2f, 0, true});
  run<__half, 64>({"fp16 a sink and a soft cap", 2, 4, 2, 40, 1, 70, 2, -1, -1, 0.2f, 3, true});
  run<__half, 64>(
      {"fp16 a negative scale, large scores", 1, 2, 2, 64, 2, 100, 1, -1, -1, -0.3f, 0, false, 40});
  run<Bf16, 256>({"bf16 head_dim 192 of 256", 1, 2, 1, 192, 2, 50, 2, -1, 0});
  run<Bf16, 64>({"bf16 a window that leaves most keys out", 1, 1, 1, 64, 1, 400, 2, 9, 0});
  constexpr float kScale = 0.2f;
  run<Bf16, 64>({"bf16 a cache without pages", 3, 2, 2, 64, 1, 60, 1, -1, 0, kScale, 0, false, 1, -1, 0});
  run<Bf16, 64>({"bf16 a cache, one new key each", 3, 2, 2, 64, 1, 60, 2, -1, 0, kScale, 0, false, 1, -1, 1});
  run<__half, 64>({"fp16 pages of one key", 2, 2, 1, 40, 1, 40, 2, -1, 0, kScale, 0, false, 1, 1, 1});
  run<Bf16, 128>(
      {"bf16 pages of 16, three new keys", 2, 4, 1, 128, 3, 90, 2, -1, 0, kScale, 0, true, 1, 16, 3});
  run<__half, 64>(
      {"fp16 a prompt in two tiles of rows", 2, 2, 1, 64, 11, 50, 1, -1, 0, kScale, 0, false, 1, 20, 11});
  run<Bf16, 64>({"bf16 an empty cache, a window", 2, 2, 2, 64, 5, 12, 1, 2, 0, kScale, 0, false, 1, 5, 5});
}

}  // namespace
}  // namespace plab::ops::attention::sm90

int main() { plab::ops::attention::sm90::run_all(); }
