// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/softmax.cuh"

// The softmax of the Hopper forward. A warpgroup's time per key tile is its products plus this, one after the
// other for the same 64 rows, so what counts here is the length of the chain, not only the number of
// instructions.
namespace plab::ops::attention::sm90 {

// Sums of exponentials relative to a reference that lags behind the row's maximum by at most kSlack powers of
// two. As long as it does, no lane asks its neighbours, and O needs no rescaling: 2^8 is far from any
// overflow, and a reference cancels in O / sum.
struct LaggingRow {
  static constexpr float kSlack = 8.f;
  float reference[2] = {-INFINITY, -INFINITY};  // a score; -inf while the row has seen nothing
  float sum[2] = {0.f, 0.f};                    // this thread's share
  bool huge = false;  // in this warp, factor * reference has too few bits after the point for the FFMA below
};

// Turns scores into exp2(factor * (score - reference)); true if references changed, and O must be multiplied
// by `rescale`. `slack` is kSlack / factor.
template <int kRegs>
__device__ __forceinline__ bool exponentiate(float (&s)[kRegs], float factor, float slack, LaggingRow& row,
                                             float (&rescale)[2]) {
  float top[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = s[2 * h], odd = s[2 * h + 1];
#pragma unroll
    for (int i = 4 + 2 * h; i < kRegs; i += 4) {
      even = fmaxf(even, s[i]);
      odd = fmaxf(odd, s[i + 1]);
    }
    top[h] = fmaxf(even, odd);
  }
  const bool grows = __any_sync(~0u, top[0] > row.reference[0] + slack || top[1] > row.reference[1] + slack);
  if (grows) {
    bool huge = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float old = row.reference[h];
      float most = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], 1));
      most = fmaxf(old, fmaxf(most, __shfl_xor_sync(~0u, most, 2)));
      rescale[h] =
          old == -INFINITY ? 1.f : ptx::ex2_approx_ftz((old - most) * factor);  // before: O and sum are 0
      row.reference[h] = most;
      row.sum[h] *= rescale[h];
      huge |= most != -INFINITY && fabsf(most * factor) > 0x1p26f;
    }
    row.huge = __any_sync(~0u, huge);
  }
  float offset[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) offset[h] = row.reference[h] == -INFINITY ? 0.f : row.reference[h] * factor;
  if (row.huge) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float reference = row.reference[h] == -INFINITY ? 0.f : row.reference[h];
      offset[h] = 0.f;
#pragma unroll
      for (int i = 2 * h; i < kRegs; i += 4) s[i] -= reference, s[i + 1] -= reference;
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 2 * h; i < kRegs; i += 4) {
      s[i] = ptx::ex2_approx_ftz(s[i] * factor - offset[h]);
      s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - offset[h]);
      row.sum[h] += s[i] + s[i + 1];
    }
  }
  return grows;
}

// 1 / sum and LSE of a finished row, in every lane of its quad.
__device__ __forceinline__ void finish_row(const LaggingRow& row, int h, float factor, const void* sink,
                                           int head, float& inverse, float& lse) {
  float sum = row.sum[h];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  float top = sum == 0.f ? -INFINITY : row.reference[h] * factor, weight = 1.f;
  if (sink != nullptr) {
    const float logit = static_cast<const float*>(sink)[head] * kLog2e, higher = fmaxf(top, logit);
    if (higher != -INFINITY) {
      weight = ptx::ex2_approx_ftz(top - higher);
      sum = sum * weight + ptx::ex2_approx_ftz(logit - higher);
      top = higher;
    }
  }
  inverse = sum == 0.f ? 0.f : weight * ptx::rcp_approx_ftz(sum);
  lse = sum == 0.f ? -INFINITY : (top + ptx::lg2_approx_ftz(sum)) * kLn2;
}

}  // namespace plab::ops::attention::sm90
