// SPDX-License-Identifier: Apache-2.0
// heavy_layer on the CPU. The slow implementation keeps those defects of slow.cu that also exist on a CPU, so the
// example is useful without a GPU.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/heavy_layer/heavy_layer.h"
#include "torch_abi/parallel.h"

namespace plab::ops {

namespace {

constexpr int64_t kSpan = 32;  // sums are formed in spans, so that rounding errors do not pile up over d

// out = in * W for one row. Each column is summed from top to bottom: steps of d elements through memory.
template <class T>
void row_times_matrix(const Accum<T>* in, const T* w, Accum<T>* out, int64_t d) {
  for (int64_t column = 0; column < d; ++column) {
    Accum<T> sum = 0;
    for (int64_t first = 0; first < d; first += kSpan) {
      const int64_t last = std::min(first + kSpan, d);
      Accum<T> part = 0;
      for (int64_t k = first; k < last; ++k) part += in[k] * static_cast<Accum<T>>(w[k * d + column]);
      sum += part;
    }
    out[column] = sum;
  }
}

template <class T>
void slow_rows(const HeavyLayerSlowParams& p, int64_t begin, int64_t end) {
  std::vector<Accum<T>> in(p.d), out(p.d);
  const T* b = static_cast<const T*>(p.b);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(p.x) + row * p.d;
    T* y = static_cast<T*>(p.y) + row * p.d;
    for (int64_t i = 0; i < p.d; ++i) in[i] = static_cast<Accum<T>>(x[i]);
    for (const void* w : {p.w1, p.w2, p.w3}) {
      row_times_matrix(in.data(), static_cast<const T*>(w), out.data(), p.d);
      std::swap(in, out);
    }
    for (int64_t i = 0; i < p.d; ++i) y[i] = static_cast<T>(std::tanh(in[i] + static_cast<Accum<T>>(b[i])));
  }
}

template <class T>
void bias_tanh_rows(const BiasTanhParams& p, int64_t begin, int64_t end) {
  const T* b = static_cast<const T*>(p.b);
  for (int64_t row = begin; row < end; ++row) {
    T* z = static_cast<T*>(p.z) + row * p.d;
    for (int64_t i = 0; i < p.d; ++i) {
      z[i] = static_cast<T>(std::tanh(static_cast<Accum<T>>(z[i]) + static_cast<Accum<T>>(b[i])));
    }
  }
}

// All rows of some columns, so that each sum has one owner and one order whatever the number of threads.
template <class T>
void tanh_backward_columns(const TanhBackwardParams& p, int64_t begin, int64_t end) {
  std::vector<Accum<T>> sum(end - begin), chunk_sum(end - begin);
  for (int64_t chunk = 0; chunk < p.rows; chunk += kChunkRows) {
    for (int64_t row = chunk; row < std::min(chunk + kChunkRows, p.rows); ++row) {
      const T* dy = static_cast<const T*>(p.dy) + row * p.d;
      const T* y = static_cast<const T*>(p.y) + row * p.d;
      T* g = static_cast<T*>(p.g) + row * p.d;
      for (int64_t i = begin; i < end; ++i) {
        const Accum<T> value = static_cast<Accum<T>>(y[i]);
        const Accum<T> slope = static_cast<Accum<T>>(dy[i]) * (1 - value * value);
        g[i] = static_cast<T>(slope);
        chunk_sum[i - begin] += slope;
      }
    }
    for (int64_t i = 0; i < end - begin; ++i) sum[i] += std::exchange(chunk_sum[i], Accum<T>(0));
  }
  T* db = static_cast<T*>(p.db);
  for (int64_t i = begin; i < end; ++i) db[i] = static_cast<T>(sum[i - begin]);
}

constexpr int64_t kElementsPerTask = 1 << 14;  // less is not worth waking a thread

}  // namespace

void heavy_layer_slow_cpu(const HeavyLayerSlowParams& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    torch_abi::parallel_for(params.rows, 1,
                            [&](int64_t begin, int64_t end) { slow_rows<T>(params, begin, end); });
  });
}

void bias_tanh_cpu(const BiasTanhParams& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    torch_abi::parallel_for(params.rows, kElementsPerTask / params.d,
                            [&](int64_t begin, int64_t end) { bias_tanh_rows<T>(params, begin, end); });
  });
}

void tanh_backward_cpu(const TanhBackwardParams& params) {
  dispatch_host(params.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    torch_abi::parallel_for(params.d, kElementsPerTask / (params.rows + 1), [&](int64_t begin, int64_t end) {
      tanh_backward_columns<T>(params, begin, end);
    });
  });
}

}  // namespace plab::ops
