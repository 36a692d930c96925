// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ops/attention/softmax.cuh"

// What the sm80 kernels need besides the online softmax of ../softmax.cuh: the version whose reference is the
// exact maximum, the version for two warps that share rows, and P and dS of the backward.
namespace plab::ops::attention::sm80 {

struct RowState {
  float max[2] = {-INFINITY, -INFINITY};  // running maximum of the row, in score units
  float sum[2] = {0.f, 0.f};              // this thread's share of the row's sum of exponentials
};

// Turns scores into exp2(factor * (score - max)), updates the state, and returns the factor that rescales O.
template <int kRegs>
__device__ __forceinline__ void online_softmax(float (&s)[kRegs], float factor, RowState& row,
                                               float (&rescale)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = row.max[h];
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) top = fmaxf(top, fmaxf(s[i], s[i + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float zero = top == -INFINITY ? 0.f : top * factor;  // nothing visible so far: keep exp2(-inf) = 0
    rescale[h] = ptx::ex2_approx_ftz(row.max[h] * factor - zero);
    row.max[h] = top;
    float sum = row.sum[h] * rescale[h];
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      s[i] = ptx::ex2_approx_ftz(s[i] * factor - zero);
      s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - zero);
      sum += s[i] + s[i + 1];
    }
    row.sum[h] = sum;
  }
}

// Overload of LazyRow's function for `row`: true if O must be multiplied by `rescale`.
template <int kRegs>
__device__ __forceinline__ bool exponentiate(float (&s)[kRegs], float factor, float, RowState& row,
                                             float (&rescale)[2]) {
  online_softmax(s, factor, row, rescale);
  return true;
}

// The row's 1 / sum and LSE after the last key. Writes nothing; every lane of the quad gets both.
__device__ __forceinline__ void finish_row(const RowState& row, int h, float factor, const void* sink,
                                           int head, float& inverse, float& lse) {
  float sum = row.sum[h];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  float top = row.max[h] == -INFINITY ? -INFINITY : row.max[h] * factor, weight = 1.f;
  if (sink != nullptr) {
    const float logit = static_cast<const float*>(sink)[head] * kLog2e, higher = fmaxf(top, logit);
    if (higher != -INFINITY) {
      weight = ptx::ex2_approx_ftz(top - higher);
      sum = sum * weight + ptx::ex2_approx_ftz(logit - higher);
      top = higher;
    }
  }
  inverse = sum == 0.f ? 0.f : weight / sum;
  lse = sum == 0.f ? -INFINITY : (top + log2f(sum)) * kLn2;
}

// The maxima of a band's two rows over this warp's keys; every lane of the quad gets them.
template <int kRegs>
__device__ __forceinline__ void row_maxima(float (&top)[2], const float (&s)[kRegs]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = -INFINITY;
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) top[h] = fmaxf(top[h], fmaxf(s[i], s[i + 1]));
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
    top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 2));
  }
}

// exponentiate for a warp that has half of the keys. `top` holds the maxima over both halves, so both warps keep
// the same reference. It lags by at most `slack` (LazyRow says why that is allowed).
template <int kRegs>
__device__ __forceinline__ bool exponentiate_half(float (&s)[kRegs], const float (&top)[2], float factor,
                                                  float slack, RowState& row, float (&rescale)[2]) {
  bool grows = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float old = row.max[h], reference = top[h] > old + slack ? top[h] : old;
    const float zero = reference == -INFINITY ? 0.f : reference * factor;
    rescale[h] = ptx::ex2_approx_ftz(old * factor - zero);
    grows |= reference != old;
    row.max[h] = reference;
    float sum = row.sum[h] * rescale[h];
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      s[i] = ptx::ex2_approx_ftz(s[i] * factor - zero);
      s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - zero);
      sum += s[i] + s[i + 1];
    }
    row.sum[h] = sum;
  }
  return __any_sync(~0u, grows);
}

// P and dS of a fragment from raw scores (in `s`) and dP (in `dp`); the statistics belong to the register's
// query.
__device__ __forceinline__ void probability_and_slope(float& s, float& dp, const ScoreMap& map, bool visible,
                                                      float lse_log2, float delta) {
  float slope = 1.f, score = s * map.factor;
  if (map.remap) {
    if (map.softcap) {
      const float t = tanh_fast(s * map.inner);
      score = map.outer * t;
      slope = 1.f - t * t;
    } else {
      score = s * map.inner;
    }
  }
  s = visible ? ptx::ex2_approx_ftz(score - lse_log2) : 0.f;
  dp = s * (dp - delta) * slope;
}

// For a scale of 0 or below and for softcap: s becomes the exponent of 2, and dP - delta is multiplied by the
// slope of the softcap.
template <int kRegs>
__device__ __forceinline__ void remap_slopes(float (&s)[kRegs], float (&dp)[kRegs], const ScoreMap& map) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) {
    if (map.softcap) {
      const float t = tanh_fast(s[i] * map.inner);
      s[i] = map.outer * t;
      dp[i] *= 1.f - t * t;
    } else {
      s[i] *= map.inner;
    }
  }
}

}  // namespace plab::ops::attention::sm80
