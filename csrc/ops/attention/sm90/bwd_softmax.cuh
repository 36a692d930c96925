// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/vec.cuh"
#include "ops/attention/softmax.cuh"

// P and dS of the backward on a fragment whose rows are keys and whose columns are queries.
namespace plab::ops::attention::sm90 {

// P = exp2(factor S - LSE log2(e)) on a fragment with queries along its columns.
template <int kRegs>
__device__ __forceinline__ void probabilities(float (&s)[kRegs], uint32_t lse_log2, int pair, float factor) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 lse = ptx::load_shared_float2(lse_log2 + (2 * i + pair) * 4);
    s[i] = ptx::ex2_approx_ftz(s[i] * factor - lse.x);
    s[i + 1] = ptx::ex2_approx_ftz(s[i + 1] * factor - lse.y);
    s[i + 2] = ptx::ex2_approx_ftz(s[i + 2] * factor - lse.x);
    s[i + 3] = ptx::ex2_approx_ftz(s[i + 3] * factor - lse.y);
  }
}

// The same with softcap. Its slope 1 - tanh^2 goes to `bend`, packed: dS must be multiplied by it.
template <class Element, int kRegs>
__device__ __forceinline__ void capped_probabilities(float (&s)[kRegs], uint32_t (&bend)[kRegs / 8][4],
                                                     uint32_t lse_log2, int pair, const ScoreMap& map) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 lse = ptx::load_shared_float2(lse_log2 + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = tanh_fast(s[i + 2 * h] * map.inner), y = tanh_fast(s[i + 2 * h + 1] * map.inner);
      s[i + 2 * h] = ptx::ex2_approx_ftz(map.outer * x - lse.x);
      s[i + 2 * h + 1] = ptx::ex2_approx_ftz(map.outer * y - lse.y);
      bend[i / 8][i / 2 % 4 + h] = ptx::pack_pair<Element>(1.f - x * x, 1.f - y * y);
    }
  }
}

template <class Element, int kRegs>
__device__ __forceinline__ void multiply_packed(float (&d)[kRegs], const uint32_t (&by)[kRegs / 8][4]) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 2) {
    float2 value;
    cuda::detail::unpack_word<Element>(by[i / 8][i / 2 % 4], value.x, value.y);
    d[i] *= value.x;
    d[i + 1] *= value.y;
  }
}

// dS = P (dP - delta), in place of dP.
template <int kRegs>
__device__ __forceinline__ void slopes(float (&dp)[kRegs], const float (&probability)[kRegs], uint32_t deltas,
                                       int pair) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 delta = ptx::load_shared_float2(deltas + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      dp[i + 2 * h] = probability[i + 2 * h] * (dp[i + 2 * h] - delta.x);
      dp[i + 2 * h + 1] = probability[i + 2 * h + 1] * (dp[i + 2 * h + 1] - delta.y);
    }
  }
}

// The same from the packed P.
template <class Element, int kRegs>
__device__ __forceinline__ void slopes_packed(float (&dp)[kRegs], const uint32_t (&probability)[kRegs / 8][4],
                                              uint32_t deltas, int pair) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    const float2 delta = ptx::load_shared_float2(deltas + (2 * i + pair) * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float2 value;
      cuda::detail::unpack_word<Element>(probability[i / 8][i / 2 % 4 + h], value.x, value.y);
      dp[i + 2 * h] = value.x * (dp[i + 2 * h] - delta.x);
      dp[i + 2 * h + 1] = value.y * (dp[i + 2 * h + 1] - delta.y);
    }
  }
}

}  // namespace plab::ops::attention::sm90
