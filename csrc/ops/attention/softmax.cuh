// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/approx.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/attention.h"

// The online softmax on an accumulator fragment, with lazy rescaling. mma.m16n8 and wgmma.m64nN give a thread
// the same elements of a band of 16 rows: register 4j + 2h + c holds row (lane / 4) + 8h, column 8j + 2 (lane
// % 4) + c. So the sm80 and the sm90 kernels share these functions.
namespace plab::ops::attention {

namespace ptx = plab::cuda::ptx;

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// What turns a raw product q·k into an exponent of 2.
struct ScoreMap {
  float factor;        // exponent = factor * score, folded into one FFMA with the row maximum
  float inner, outer;  // with softcap: score becomes outer * tanh(inner * score); without: inner * score
  bool softcap, remap;
  __device__ __forceinline__ explicit ScoreMap(const Problem& p)
      : softcap(p.softcap > 0), remap(softcap || !(p.scale > 0)) {
    // A scale <= 0 turns the row's maximum into its minimum, so it is applied before the maximum is
    // computed.
    factor = remap ? 1.f : float(p.scale) * kLog2e;
    inner = softcap ? float(p.scale / p.softcap) : float(p.scale) * kLog2e;
    outer = float(p.softcap) * kLog2e;
  }
};

__device__ __forceinline__ float tanh_fast(float x) {
  // 1 - 2 / (1 + e^2x): absolute error 1e-7 everywhere, saturates without overflow (2^127 -> 1 - 0).
  return 1.f - __fdividef(2.f, 1.f + ptx::ex2_approx_ftz(fminf(x * (2.f * kLog2e), 126.f)));
}

template <int kRegs>
__device__ __forceinline__ void remap_scores(float (&s)[kRegs], const ScoreMap& map) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i)
    s[i] = map.softcap ? map.outer * tanh_fast(s[i] * map.inner) : s[i] * map.inner;
}

// Lazy rescaling: sums of exponentials relative to a reference that lags behind the row's maximum by at most
// kSlack powers of two. Within this slack no shuffle is needed and O is not rescaled: 2^8 is far from any
// overflow, and the reference cancels in O / sum.
struct LazyRow {
  static constexpr float kSlack = 8.f;
  float reference[2] = {-INFINITY, -INFINITY};  // a score; -inf while the row has seen nothing
  float sum[2] = {0.f, 0.f};                    // this thread's part
  bool huge = false;  // in this warp, factor * reference has too few bits after the point for the FFMA below
};

// Turns scores into exp2(factor * (score - reference)); true if references changed, and O must be multiplied
// by `rescale`. `slack` is kSlack / factor.
template <int kRegs>
__device__ __forceinline__ bool exponentiate(float (&s)[kRegs], float factor, float slack, LazyRow& row,
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

// 1 / sum and LSE of a row from the sum of its exponentials and `top`, the exponent they are relative to.
__device__ __forceinline__ void finish_sum(float sum, float top, const void* sink, int head, float& inverse,
                                           float& lse) {
  float weight = 1.f;
  if (sum == 0.f) top = -INFINITY;
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

// The same for an accumulator's row, in every lane of its quad.
__device__ __forceinline__ void finish_row(const LazyRow& row, int h, float factor, const void* sink,
                                           int head, float& inverse, float& lse) {
  float sum = row.sum[h];
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  finish_sum(sum, row.reference[h] * factor, sink, head, inverse, lse);
}

// Registers 8k .. 8k+7 of an accumulator are the m16k16 A operand of the next product, once packed to 16
// bits.
template <class Element, int kRegs>
__device__ __forceinline__ void pack_operand(uint32_t (&a)[4], const float (&s)[kRegs], int k) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ptx::pack_pair<Element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

}  // namespace plab::ops::attention
