// SPDX-License-Identifier: Apache-2.0
// The three rungs on the CPU: the same algorithms as the kernels, loop by loop. A thread takes whole heads
// (naive, tiled) or blocks of queries (flash).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/ladder_attention/ladder_attention.h"
#include "torch_abi/parallel.h"

namespace plab::ops::ladder {
namespace {

constexpr int64_t kTile =
    64;  // rows, and keys, of a tile: 64 x 128 floats are 32 KB, the size of an L1 cache

// One head of one batch entry: rows of head_dim elements, a stride apart.
template <class T>
struct Head {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  int64_t stride;

  Head(const Params& p, int64_t index) : stride(p.heads * p.head_dim) {
    const int64_t batch = index / p.heads, column = index % p.heads * p.head_dim;
    q = static_cast<const T*>(p.q) + batch * p.rows * stride + column;
    k = static_cast<const T*>(p.k) + batch * p.keys * stride + column;
    v = static_cast<const T*>(p.v) + batch * p.keys * stride + column;
    out = static_cast<T*>(p.out) + batch * p.rows * stride + column;
  }
};

template <class T>
Accum<T> dot(const T* a, const T* b, int64_t size) {
  Accum<T> sum = 0;
  for (int64_t c = 0; c < size; ++c) sum += static_cast<Accum<T>>(a[c]) * static_cast<Accum<T>>(b[c]);
  return sum;
}

template <class T>
void add_scaled(Accum<T>* sum, Accum<T> factor, const T* row, int64_t size) {
  for (int64_t c = 0; c < size; ++c) sum[c] += factor * static_cast<Accum<T>>(row[c]);
}

// The row's scores become its probabilities; invisible keys get 0.
template <class Acc>
void softmax(Acc* row, int64_t visible, int64_t keys) {
  Acc top = -std::numeric_limits<Acc>::infinity(), sum = 0;
  for (int64_t j = 0; j < visible; ++j) top = std::max(top, row[j]);
  for (int64_t j = 0; j < visible; ++j) sum += row[j] = std::exp(row[j] - top);
  for (int64_t j = 0; j < visible; ++j) row[j] /= sum;
  std::fill(row + visible, row + keys, Acc(0));
}

// Both rungs that store the scores. Tiles of `tile` rows and keys decide only the order of the work: with
// tiles, kTile rows of K (then V) are used kTile times while they are in the cache, not once.
template <class T>
void with_score_matrix(const Params& p, int64_t tile) {
  using Acc = Accum<T>;
  torch_abi::parallel_for(p.batch * p.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<Acc> scores(p.rows * p.keys), sums(p.rows * p.head_dim);
    const auto for_each_pair = [&](auto&& body) {
      for (int64_t i0 = 0; i0 < p.rows; i0 += tile)
        for (int64_t j0 = 0; j0 < p.keys; j0 += tile)
          for (int64_t i = i0; i < std::min(i0 + tile, p.rows); ++i)
            for (int64_t j = j0; j < std::min(j0 + tile, p.keys); ++j) body(i, j);
    };
    for (int64_t index = begin; index < end; ++index) {
      const Head<T> head(p, index);
      for_each_pair([&](int64_t i, int64_t j) {
        scores[i * p.keys + j] =
            static_cast<Acc>(p.scale) * dot(head.q + i * head.stride, head.k + j * head.stride, p.head_dim);
      });
      for (int64_t i = 0; i < p.rows; ++i) softmax(&scores[i * p.keys], visible_keys(p, i), p.keys);
      std::ranges::fill(sums, Acc(0));
      for_each_pair([&](int64_t i, int64_t j) {
        add_scaled(&sums[i * p.head_dim], scores[i * p.keys + j], head.v + j * head.stride, p.head_dim);
      });
      for (int64_t i = 0; i < p.rows; ++i)
        for (int64_t c = 0; c < p.head_dim; ++c)
          head.out[i * head.stride + c] = static_cast<T>(sums[i * p.head_dim + c]);
    }
  });
}

// One row of the flash rung: keys in tiles; the row's state is only a maximum, a sum and head_dim sums.
template <class T>
void flash_row(const Params& p, const Head<T>& head, int64_t i, Accum<T>* scores, Accum<T>* sums) {
  using Acc = Accum<T>;
  Acc top = -std::numeric_limits<Acc>::infinity(), sum = 0;
  std::fill(sums, sums + p.head_dim, Acc(0));
  const int64_t visible = visible_keys(p, i);
  for (int64_t j0 = 0; j0 < visible; j0 += kTile) {
    const int64_t count = std::min(kTile, visible - j0);
    for (int64_t j = 0; j < count; ++j)
      scores[j] = static_cast<Acc>(p.scale) *
                  dot(head.q + i * head.stride, head.k + (j0 + j) * head.stride, p.head_dim);
    const Acc new_top = std::max(top, *std::max_element(scores, scores + count));
    const Acc shrink = std::exp(top - new_top);  // 0 for the first tile: exp(-inf)
    sum *= shrink;
    for (int64_t c = 0; c < p.head_dim; ++c) sums[c] *= shrink;
    for (int64_t j = 0; j < count; ++j) {
      const Acc weight = std::exp(scores[j] - new_top);
      sum += weight;
      add_scaled(sums, weight, head.v + (j0 + j) * head.stride, p.head_dim);
    }
    top = new_top;
  }
  for (int64_t c = 0; c < p.head_dim; ++c)
    head.out[i * head.stride + c] = static_cast<T>(visible > 0 ? sums[c] / sum : Acc(0));
}

}  // namespace

void naive_cpu(const Params& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_score_matrix<T>(params, std::max(params.rows, params.keys) + 1);
  });
}

void tiled_cpu(const Params& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_score_matrix<T>(params, kTile);
  });
}

void flash_cpu(const Params& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    torch_abi::parallel_for(params.batch * params.heads * params.rows, kTile,
                            [&](int64_t begin, int64_t end) {
                              std::vector<Accum<T>> scores(kTile), sums(params.head_dim);
                              for (int64_t one = begin; one < end; ++one) {
                                const Head<T> head(params, one / params.rows);
                                flash_row<T>(params, head, one % params.rows, scores.data(), sums.data());
                              }
                            });
  });
}

}  // namespace plab::ops::ladder
