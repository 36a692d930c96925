// SPDX-License-Identifier: Apache-2.0
// Runs what flash_attention_with_cache launches for sequences with different numbers of rows on the CPU: new keys
// are appended, long sequences take the Hopper forward (wgmma, TMA, its barriers and warps), short ones the decode
// kernel. Block masks run on the same forward. Prints for each case the largest errors against double, relative to the
// largest value:
//
//     <case>\t<out>\t<lse>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#define WHOLE_WARPS_WAIT
#include "cuda_on_cpu.h"

using std::max;
using std::min;

#include "ops/attention/sm90/decode/kernel.cuh"
#include "ops/attention/sm90/fwd_kernel.cuh"

namespace plab::ops::attention::sm90 {

unsigned char memory[1], bytes[1];

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  std::vector<int> lengths, rows;
  int page_size;  // 0: no pages
  int heads, kv_heads, dim;
  int left = -1, right = 0;
  bool adds = true, packed = true, counts = true, sink = false;
  int grid = 3;  // blocks
};

// A (batch, rows, heads, dim) tensor whose rows are followed by NaN.
template <class Element>
struct Rows {
  int rows, heads, dim, pitch;
  std::vector<Element> values;
  Rows(int batch, int rows, int heads, int dim)
      : rows(rows), heads(heads), dim(dim), pitch(dim + 8), values(size_t(batch) * rows * heads * pitch + 8) {
    std::fill(values.begin(), values.end(), Element(kNaN));
    if (reinterpret_cast<std::uintptr_t>(values.data()) % 16 != 0) std::abort();
  }
  View view(bool packed = false) {
    return {values.data(), packed ? 0 : int64_t{rows} * heads * pitch, int64_t{heads} * pitch, pitch};
  }
  Element& at(int b, int row, int head, int column) {
    return values[((size_t(b) * rows + row) * heads + head) * pitch + column];
  }
};

template <class Config>
void run_forward(const FwdParams& params, int blocks) {
  const Problem& p = params.problem;
  TileGrid grid = make_tile_grid(p, true, Config::kTileQ, 1 << 20);
  if (p.cu_seqlens_q != nullptr) grid.above = kDecodeRows;
  const int64_t batch = p.cu_seqlens_q ? 1 : p.batch;
  const auto of_queries = [&](const View& view, int box) {
    return make_tensor_map(view, p.element, p.head_dim, p.q_len, p.heads, batch, box);
  };
  const int key_rows =
      params.cache.pages ? std::gcd(params.cache.page_size, Config::kTileKv) : Config::kTileKv;
  const auto of_keys = [&](const View& view) {
    return make_tensor_map(view, p.element, p.head_dim, params.cache.page_size, p.kv_heads,
                           params.cache.page_count, key_rows);
  };
  const FwdMaps maps{of_queries(params.q, Config::kTileQ), of_keys(params.k), of_keys(params.v),
                     of_queries(params.out, 64),           key_rows,          key_rows < 8};
  ptx::mbarriers.clear();
  std::fill(ptx::cluster_memory.begin(), ptx::cluster_memory.end(), 0xff);
  on_cpu::launch(blocks, Config::kThreads, [&] { attention_fwd_sm90_kernel<Config>(params, grid, maps); });
}

template <class Config>
void run(const Case& c) {
  using Element = typename Config::Element;
  std::mt19937 generator(1);
  std::normal_distribution<float> draw(0, 1);
  const int batch = int(c.rows.size());
  std::vector<int32_t> cu{0}, lengths;
  int most_keys = 0;
  std::vector<int> keys;
  for (int b = 0; b < batch; ++b) {
    cu.push_back(cu.back() + c.rows[b]), lengths.push_back(c.lengths[b]);
    keys.push_back(c.lengths[b] + (c.adds ? c.rows[b] : 0));
    most_keys = std::max(most_keys, keys.back());
  }
  const int all = cu.back(), room = most_keys + 3, page = c.page_size > 0 ? c.page_size : room,
            pages = (room + page - 1) / page, count = batch * pages + 1;
  Rows<Element> q(1, all, c.heads, c.dim), out = q, new_k(1, all, c.kv_heads, c.dim), new_v = new_k;
  Rows<Element> truth_k(batch, room, c.kv_heads, c.dim), truth_v = truth_k;
  Rows<Element> cache_k(count, page, c.kv_heads, c.dim), cache_v = cache_k;
  std::vector<int32_t> table(batch * pages);
  for (int i = 0; i < batch * pages; ++i) table[i] = c.page_size > 0 ? count - 1 - i : i;
  const auto cached = [&](Rows<Element>& of, int b, int key) -> Element* {
    return &of.at(table[b * pages + key / page], key % page, 0, 0);
  };
  for (int r = 0; r < all; ++r)
    for (int h = 0; h < c.heads; ++h)
      for (int d = 0; d < c.dim; ++d) q.at(0, r, h, d) = Element(draw(generator));
  for (int b = 0; b < batch; ++b)
    for (int j = 0; j < keys[b]; ++j)
      for (int h = 0; h < c.kv_heads; ++h)
        for (int d = 0; d < c.dim; ++d) {
          truth_k.at(b, j, h, d) = Element(draw(generator)),
                              truth_v.at(b, j, h, d) = Element(draw(generator));
          const bool kept = j < c.lengths[b];
          const int row = cu[b] + j - c.lengths[b];
          (kept ? cached(cache_k, b, j)[h * cache_k.pitch + d] : new_k.at(0, row, h, d)) =
              truth_k.at(b, j, h, d);
          (kept ? cached(cache_v, b, j)[h * cache_v.pitch + d] : new_v.at(0, row, h, d)) =
              truth_v.at(b, j, h, d);
        }
  std::vector<float> lse(size_t(c.heads) * all, kNaN), sink(c.heads);
  for (int h = 0; h < c.heads; ++h) sink[h] = h % 2 ? 2.f : -INFINITY;
  int32_t counter = 0;
  const int q_len = c.packed ? all : c.rows[0];
  FwdParams params{};
  params.problem = {ElementType::kFloat16,
                    batch,
                    c.heads,
                    c.kv_heads,
                    c.dim,
                    c.dim,
                    q_len,
                    int64_t{page} * pages * (c.packed ? batch : 1),
                    c.packed ? cu.data() : nullptr,
                    c.packed ? cu.data() : nullptr,
                    c.left,
                    c.right,
                    0.2,
                    0,
                    c.sink ? sink.data() : nullptr,
                    true};
  q.rows = out.rows = q_len;
  params.q = q.view(c.packed), params.out = out.view(c.packed);
  params.k = cache_k.view(), params.v = cache_v.view();
  params.lse = lse.data();
  params.rows = c.packed ? RowLayout{0, all} : RowLayout{int64_t{c.heads} * q_len, q_len};
  params.tile_counter = c.counts ? &counter : nullptr;
  KeyCache& cache = params.cache;
  cache.lengths = lengths.data();
  if (c.page_size > 0) cache.pages = table.data();
  cache.pages_stride = pages, cache.page_count = c.page_size > 0 ? count : batch, cache.page_size = page;
  cache.capacity = page * pages;
  if (c.adds) {
    cache.new_rows = c.packed ? KeyCache::kAsQueries : q_len;
    new_k.rows = new_v.rows = q_len;
    cache.new_k = new_k.view(c.packed), cache.new_v = new_v.view(c.packed);
    on_cpu::launch(2, 64, [&] { append_keys(params, blockIdx.x * 64 + threadIdx.x, 128); });
  }
  run_forward<Config>(params, c.grid);
  if (c.packed) {
    using Decode = DecodeConfig<Element, Config::kHeadDim>;
    const int tiles = most_decode_tiles(params.problem, kDecodeRows);
    std::fill(ptx::cluster_memory.begin(), ptx::cluster_memory.end(), 0xff);
    on_cpu::launch(
        tiles * c.kv_heads * 2, Decode::kThreads,
        [&] { attention_decode_sm90_kernel<Decode, CachedKeys>(params, 2, tiles, kDecodeRows); }, 2);
  }

  double error = 0, top = 0, lse_error = 0;
  for (int b = 0; b < batch; ++b) {
    for (int i = 0; i < room; ++i)  // what the cache holds, and NaN behind it
      for (int h = 0; h < c.kv_heads; ++h)
        for (int d = 0; d < c.dim; ++d)
          for (const bool is_k : {true, false}) {
            const Element in = cached(is_k ? cache_k : cache_v, b, i)[h * cache_k.pitch + d],
                          expected = (is_k ? truth_k : truth_v).at(b, i, h, d);
            if (std::memcmp(&in, &expected, sizeof in) != 0) error = INFINITY;
          }
    for (int h = 0; h < c.heads; ++h) {
      for (int i = 0; i < c.rows[b]; ++i) {
        const int row = cu[b] + i, shift = keys[b] - c.rows[b], kv = h / (c.heads / c.kv_heads);
        std::vector<double> weights, exact(c.dim);
        double most = c.sink ? sink[h] : -INFINITY, sum = 0;
        for (int j = 0; j < keys[b]; ++j) {
          double score = 0;
          for (int d = 0; d < c.dim; ++d)
            score += double(float(q.values[(size_t(row) * c.heads + h) * q.pitch + d])) *
                     double(float(truth_k.at(b, j, kv, d)));
          score *= 0.2;
          if ((c.left >= 0 && j < i + shift - c.left) || (c.right >= 0 && j > i + shift + c.right))
            score = -INFINITY;
          weights.push_back(score), most = std::max(most, score);
        }
        if (c.sink) sum += std::exp(sink[h] - most);
        for (int j = 0; j < keys[b]; ++j) {
          const double weight = weights[j] == -INFINITY ? 0 : std::exp(weights[j] - most);
          sum += weight;
          for (int d = 0; d < c.dim; ++d) exact[d] += weight * double(float(truth_v.at(b, j, kv, d)));
        }
        const size_t at = c.packed ? size_t(h) * all + row : (size_t(b) * c.heads + h) * q_len + i;
        const bool nothing = most == -INFINITY;
        const double exact_lse = most + std::log(sum);
        if (nothing ? lse[at] != -INFINITY : !(std::abs(lse[at] - exact_lse) < 1e9)) lse_error = INFINITY;
        if (!nothing) lse_error = std::max(lse_error, std::abs(lse[at] - exact_lse));
        const Element* got = &out.values[(size_t(row) * c.heads + h) * out.pitch];
        for (int d = 0; d < c.dim; ++d) {
          const double expected = nothing ? 0 : exact[d] / sum, off = std::abs(expected - float(got[d]));
          error = off >= error || !(off >= 0) ? off : error;  // a NaN stays
          top = std::max(top, std::abs(expected));
        }
        if (!std::isnan(float(got[c.dim]))) error = INFINITY;  // written behind the row
      }
    }
  }
  std::printf("%s\t%.3e\t%.3e\n", c.name, top > 0 ? error / top : error, lse_error);
  std::fflush(stdout);
}

// Sequences one behind the other, with kernels that know no cache. The second one is NaN: whoever reads its keys shows
// it.
template <class Config>
void run_packed(const char* name, std::vector<int> rows, int heads) {
  using Element = typename Config::Element;
  constexpr int kDim = Config::kHeadDim;
  std::mt19937 generator(3);
  std::normal_distribution<float> draw(0, 1);
  std::vector<int32_t> cu{0};
  for (const int one : rows) cu.push_back(cu.back() + one);
  const int all = cu.back();
  Rows<Element> q(1, all, heads, kDim), k = q, v = q, out = q;
  for (Rows<Element>* one : {&q, &k, &v})
    for (int r = 0; r < all; ++r)
      for (int h = 0; h < heads; ++h)
        for (int d = 0; d < kDim; ++d)
          one->at(0, r, h, d) = r >= cu[1] && r < cu[2] ? Element(kNaN) : Element(draw(generator));
  std::vector<float> lse(size_t(heads) * all, kNaN);
  int32_t counter = 0;
  FwdParams params{};
  params.problem = {ElementType::kFloat16,
                    int(rows.size()),
                    heads,
                    heads,
                    kDim,
                    kDim,
                    all,
                    all,
                    cu.data(),
                    cu.data(),
                    -1,
                    0,
                    0.2,
                    0,
                    nullptr,
                    true};
  params.q = q.view(true), params.k = k.view(true), params.v = v.view(true), params.out = out.view(true);
  params.lse = lse.data(), params.rows = {0, all}, params.tile_counter = &counter;
  const auto map = [&](const View& view, int box) {
    return make_tensor_map(view, ElementType::kFloat16, kDim, all, heads, 1, box);
  };
  const FwdMaps maps{map(params.q, Config::kTileQ),
                     map(params.k, Config::kTileKv),
                     map(params.v, Config::kTileKv),
                     map(params.out, 64),
                     Config::kTileKv,
                     false};
  const TileGrid grid = make_tile_grid(params.problem, true, Config::kTileQ, 1 << 20);
  ptx::mbarriers.clear();
  std::fill(ptx::cluster_memory.begin(), ptx::cluster_memory.end(), 0xff);
  on_cpu::launch(2, Config::kThreads, [&] { attention_fwd_sm90_kernel<Config>(params, grid, maps); });
  double error = 0, top = 0, lse_error = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    if (b == 1) continue;
    for (int h = 0; h < heads; ++h)
      for (int i = cu[b]; i < cu[b + 1]; ++i) {
        std::vector<double> weights, exact(kDim);
        double most = -INFINITY, sum = 0;
        for (int j = cu[b]; j <= i; ++j) {
          double score = 0;
          for (int d = 0; d < kDim; ++d)
            score += double(float(q.at(0, i, h, d))) * double(float(k.at(0, j, h, d)));
          weights.push_back(score * 0.2), most = std::max(most, weights.back());
        }
        for (int j = cu[b]; j <= i; ++j) {
          const double weight = std::exp(weights[j - cu[b]] - most);
          sum += weight;
          for (int d = 0; d < kDim; ++d) exact[d] += weight * double(float(v.at(0, j, h, d)));
        }
        lse_error = std::max(lse_error, std::abs(most + std::log(sum) - lse[size_t(h) * all + i]));
        for (int d = 0; d < kDim; ++d) {
          const double off = std::abs(exact[d] / sum - float(out.at(0, i, h, d)));
          error = off >= error || !(off >= 0) ? off : error;
          top = std::max(top, std::abs(exact[d] / sum));
        }
      }
  }
  std::printf("%s\t%.3e\t%.3e\n", name, error / top, lse_error);
  std::fflush(stdout);
}

// A block mask drawn at random: each 64 rows of a head see a block of 128 keys whole, not at all or in part. Heads of
// `per_head` have lists of their own.
template <class Config>
void run_masked(const char* name, int batch, int q_len, int k_len, int heads, int kv_heads, bool per_head) {
  using Element = typename Config::Element;
  constexpr int kDim = Config::kHeadDim, kGroups = Config::kTileQ / 64;
  std::mt19937 generator(7);
  std::normal_distribution<float> draw(0, 1);
  Rows<Element> q(batch, q_len, heads, kDim), out = q, k(batch, k_len, kv_heads, kDim), v = k;
  for (Rows<Element>* one : {&q, &k, &v})
    for (size_t i = 0; i < one->values.size(); ++i)
      if (int(i % one->pitch) < kDim && i + 8 < one->values.size()) one->values[i] = Element(draw(generator));
  const int tiles = (q_len + Config::kTileQ - 1) / Config::kTileQ, most = (k_len + 127) / 128,
            lists = per_head ? heads : 1;
  std::vector<int32_t> counts(lists * tiles);
  std::vector<BlockMask::Block> blocks(size_t(lists) * tiles * most);
  std::vector<uint32_t> bits;
  std::vector<char> seen(size_t(lists) * tiles * Config::kTileQ * most * 128);
  for (int l = 0; l < lists; ++l)
    for (int t = 0; t < tiles; ++t) {
      int& count = counts[l * tiles + t];
      for (int b = 0; b < most; ++b) {
        BlockMask::Block block{b, {BlockMask::kNone, BlockMask::kNone, BlockMask::kNone}};
        bool any = false;
        for (int g = 0; g < kGroups; ++g) {
          const int kind = int(generator() % 4), first = t * Config::kTileQ + 64 * g;
          const bool whole = kind == 0 && (b + 1) * 128 <= k_len;
          if (kind == 3 || first >= q_len) continue;
          any = true;
          block.parts[g] = whole ? BlockMask::kAll : int(bits.size() / 256);
          for (int r = 0; r < 64; ++r)
            for (int w = 0; w < 4; ++w) {
              uint32_t word = kind == 1 ? generator() : kind == 2 ? 0x0f0f00ff << (r % 16) : ~0u;
              for (int c = 0; c < 32; ++c) {
                if (b * 128 + w * 32 + c >= k_len) word &= ~(1u << c);
                seen[((size_t(l) * tiles * Config::kTileQ + first + r) * most + b) * 128 + w * 32 + c] =
                    word >> c & 1;
              }
              if (!whole) bits.push_back(word);
            }
        }
        if (any) blocks[(size_t(l) * tiles + t) * most + count++] = block;
      }
      if (count == 0) blocks[(size_t(l) * tiles + t) * most + count++] = {0, {-2, -2, -2}};
    }
  std::vector<float> lse(size_t(batch) * heads * q_len, kNaN);
  int32_t counter = 0;
  FwdParams params{};
  params.problem = {ElementType::kFloat16,
                    batch,
                    heads,
                    kv_heads,
                    kDim,
                    kDim,
                    q_len,
                    k_len,
                    nullptr,
                    nullptr,
                    -1,
                    -1,
                    0.2,
                    0,
                    nullptr};
  params.q = q.view(), params.k = k.view(), params.v = v.view(), params.out = out.view();
  params.lse = lse.data(), params.rows = {int64_t{heads} * q_len, q_len};
  params.tile_counter = &counter;
  params.cache.page_count = batch, params.cache.page_size = params.cache.capacity = k_len;
  params.mask = {counts.data(), blocks.data(), bits.data(), 0, per_head ? tiles : 0, most};
  run_forward<Config>(params, 2);
  double error = 0, top = 0, lse_error = 0;
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int i = 0; i < q_len; ++i) {
        const int kv = h / (heads / kv_heads), l = per_head ? h : 0;
        std::vector<double> weights(k_len), exact(kDim);
        double most_score = -INFINITY, sum = 0;
        for (int j = 0; j < k_len; ++j) {
          double score = 0;
          for (int d = 0; d < kDim; ++d)
            score += double(float(q.at(b, i, h, d))) * double(float(k.at(b, j, kv, d)));
          const bool sees = seen[((size_t(l) * tiles * Config::kTileQ + i) * most + j / 128) * 128 + j % 128];
          weights[j] = sees ? score * 0.2 : -INFINITY, most_score = std::max(most_score, weights[j]);
        }
        for (int j = 0; j < k_len; ++j) {
          const double weight = weights[j] == -INFINITY ? 0 : std::exp(weights[j] - most_score);
          sum += weight;
          for (int d = 0; d < kDim; ++d) exact[d] += weight * double(float(v.at(b, j, kv, d)));
        }
        const bool nothing = most_score == -INFINITY;
        const double exact_lse = most_score + std::log(sum), got = lse[(size_t(b) * heads + h) * q_len + i];
        if (nothing ? got != -INFINITY : !(std::abs(got - exact_lse) < 1e9)) lse_error = INFINITY;
        if (!nothing) lse_error = std::max(lse_error, std::abs(got - exact_lse));
        for (int d = 0; d < kDim; ++d) {
          const double one = nothing ? 0 : exact[d] / sum, off = std::abs(one - float(out.at(b, i, h, d)));
          error = off >= error || !(off >= 0) ? off : error;
          top = std::max(top, std::abs(one));
        }
      }
  std::printf("%s\t%.3e\t%.3e\n", name, error / top, lse_error);
  std::fflush(stdout);
}

template <class Element, int kHeadDim, int kTileQ, int kTileKv, bool kPingPong>
using Cached = FwdConfig<Element, kHeadDim, kTileQ, kTileKv, kPingPong, 1, 2, kHeadDim, true>;

// The kernels of cache/fwd.cu; few and small ones for the thread sanitizer.
void run_all() {
  using D64 = Cached<__half, 64, 192, 128, false>;
  using D128 = Cached<__nv_bfloat16, 128, 128, 128, true>;
#ifdef __SANITIZE_THREAD__
  run<D128>({"bf16 d128, pages of one key, a prompt and a row", {150, 9}, {40, 1}, 1, 1, 1, 128});
  run<D64>({"fp16 d64, no pages", {0, 70}, {20, 18}, 0, 1, 1, 64});
  run_masked<D128>("bf16 d128, a block mask", 1, 70, 200, 1, 1, false);
#else
  using D256 = Cached<__nv_bfloat16, 256, 128, 64, false>;
  run<D128>({"bf16 d128, pages of one key, prompts and single rows",
             {150, 0, 3, 40},
             {40, 17, 1, 3},
             1,
             2,
             1,
             128});
  run<D128>({"bf16 d128, pages of 16", {200, 7}, {140, 20}, 16, 2, 2, 112});
  run<D128>({"bf16 d128, pages that are tiles, a window", {300, 5}, {30, 150}, 128, 1, 1, 128, 90});
  run<D64>({"fp16 d64, pages of 7, a sink", {0, 90}, {200, 20}, 7, 2, 1, 64, -1, 0, true, true, true, true});
  run<D64>(
      {"fp16 d40, no pages, nothing new, everything seen", {150, 33}, {30, 18}, 0, 2, 2, 40, -1, -1, false});
  run<D64>(
      {"fp16 d64, rows without offsets, dealt", {70, 0}, {50, 50}, 16, 2, 2, 64, -1, 0, true, false, false});
  run<D256>({"bf16 d256, pages of 48", {60, 1}, {33, 2}, 48, 2, 1, 256});
  run<D128>({"bf16 d128, pages of 64", {20, 130}, {20, 130}, 64, 1, 1, 120});
  run<D128>({"bf16 d128, pages of 12", {70}, {60}, 12, 1, 1, 128});
  run<D256>(
      {"bf16 d192, no pages, rows without offsets", {100, 9}, {20, 20}, 0, 1, 1, 192, -1, 0, true, false});
  run_packed<FwdConfig<__nv_bfloat16, 96, 192, 96, false> >("bf16 d96, packed", {70, 30, 200}, 1);
  run_packed<FwdConfig<__half, 80, 192, 112, false> >("fp16 d80, packed", {130, 20}, 1);
  run_packed<FwdConfig<__nv_bfloat16, 192, 128, 80, false> >("bf16 d192, packed", {70, 30, 130}, 1);
  run_masked<D128>("bf16 d128, a block mask for each head", 1, 300, 500, 3, 1, true);
  run_masked<D64>("fp16 d64, a block mask for all", 2, 400, 330, 2, 2, false);
  run_masked<D256>("bf16 d256, a block mask", 1, 130, 260, 1, 1, true);
#endif
}

}  // namespace
}  // namespace plab::ops::attention::sm90

int main() { plab::ops::attention::sm90::run_all(); }
