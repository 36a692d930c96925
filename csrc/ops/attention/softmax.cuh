// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/approx.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "ops/attention/tile_map.cuh"

// The softmax on an accumulator fragment. mma.m16n8 and wgmma.m64nN give a thread the same share of a 16-row
// band: register 4j + 2h + c holds row (lane / 4) + 8h, column 8j + 2 (lane % 4) + c. So both paths use these
// functions.
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
    // A scale <= 0 would turn the row's maximum into its minimum, so it is applied before the maximum is
    // taken.
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

// Bit e says whether element e of a fragment's row, of columns 0, 1, 8, 9, 16, 17 ..., lies before `end`.
__device__ __forceinline__ uint32_t bits_before(int end) {
  const int count = min(max(2 * (end >> 3) + min(end & 7, 2), 0), 32);
  return __funnelshift_lc(0, 1, count) - 1;  // a shift by 32 gives 0
}

// Keeps what a query sees: `row` is the band's first query, `column` the tile's first key. A bit per element,
// as testing a bit is one instruction and comparing with two bounds is two.
template <int kRegs>
__device__ __forceinline__ void mask_scores(float (&s)[kRegs], int column, int row, const Visible& visible,
                                            int k_len) {
  const int lane = int(threadIdx.x & 31);
  column += 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int low = visible.low(row + lane / 4 + 8 * h) - column;
    const int high = visible.high(row + lane / 4 + 8 * h, k_len) - column;
#pragma unroll
    for (int first = 0; first < kRegs; first += 64) {  // 128 columns: 64 registers, 32 of them this row's
      const uint32_t seen = bits_before(high - 2 * first) & ~bits_before(low - 2 * first);
#pragma unroll
      for (int i = first + 2 * h; i < min(first + 64, kRegs); i += 4) {
        if (!(seen >> (2 * ((i - first) / 4)) & 1)) s[i] = -INFINITY;
        if (!(seen >> (2 * ((i - first) / 4) + 1) & 1)) s[i + 1] = -INFINITY;
      }
    }
  }
}

struct RowState {
  float max[2] = {-INFINITY, -INFINITY};  // running maximum of the row, in score units
  float sum[2] = {0.f, 0.f};              // this thread's share of the row's sum of exponentials
};

// Turns scores into exp2(factor * (score - max)), updates the state, and says by what O must be multiplied.
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

// The row's 1 / sum and LSE once all keys are in. Writes nothing; every lane of the quad gets both.
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

// Registers 8k .. 8k+7 of an accumulator are the m16k16 A operand of the next product, once packed to 16
// bits.
template <class Element, int kRegs>
__device__ __forceinline__ void pack_operand(uint32_t (&a)[4], const float (&s)[kRegs], int k) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = ptx::pack_pair<Element>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

}  // namespace plab::ops::attention
