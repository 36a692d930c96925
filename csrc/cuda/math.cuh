// SPDX-License-Identifier: Apache-2.0
// GELU and its derivative, cheap enough for the memory roof and accurate relative to the result, also where
// the normal distribution's tail makes it tiny: nothing here is computed as 1 + erf(z), which cancels for
// negative z.
//
// With t = |z| and Q(t) = Phi(-t), the upper tail of the normal distribution:
//   gelu(z)  = max(z, 0) - t Q(t)                    one expression for both signs, no cancellation for z < 0
//   gelu'(z) = g(t) for z < 0, else 1 - g(t)         g(t) = Q(t) - t phi(t)
//   Q(t)     = exp(-t^2 / 2) P(u), u = 1 / (1 + s t)  the form of Abramowitz and Stegun 7.1.26
// P is a minimax polynomial for the relative error of Q over 0 <= t <= 13.3, where the tail leaves fp32
// (5e-9). fp32 uses it from |z| = 0.75 on and, nearer to zero, an odd polynomial for Phi - 1/2, where
// rounding of the tail form would show. The value for 16-bit elements needs no exponential apart and takes
// log2 Q itself as a polynomial: 8 instructions, against about 40 for erff. tests/ops/test_layer_norm_gelu.py
// shows the error by binade of the result, compared with PyTorch's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/ptx/approx.cuh"
#include "cuda/types.h"
#include "cuda/vec.cuh"

namespace plab::cuda {

/// c0 + u (c1 + u (c2 + ...)).
__device__ __forceinline__ float horner(float, float c0) { return c0; }
template <class... Rest>
__device__ __forceinline__ float horner(float u, float c0, Rest... rest) {
  return fmaf(horner(u, rest...), u, c0);
}

/// 1 / sqrt(v), one Newton step beyond the approximation. v > 0.
__device__ __forceinline__ float accurate_rsqrt(float v) {
  const float r = rsqrtf(v);
  return fmaf(0.5f * r, fmaf(-v * r, r, 1.0f), r);
}

/// 1 / sqrt(v) - r, where r approximates it.
__device__ __forceinline__ float rsqrt_rest(float v, float r) {
  const float p = v * r, rounded_off = fmaf(v, r, -p);
  return 0.5f * r * fmaf(-rounded_off, r, fmaf(-p, r, 1.0f));
}

/// exp(-t^2 / 2).
__device__ __forceinline__ float gauss(float t) {
  constexpr float kMinusHalfLog2E = -0.72134752f;
  return ptx::ex2_approx_ftz(t * kMinusHalfLog2E * t);
}

/// Q(t) exp(t^2 / 2) for fp32 results, t >= 0: the tail without its exponential.
__device__ __forceinline__ float scaled_tail(float t) {
  const float u = ptx::rcp_approx_ftz(fmaf(t, 0.3125f, 1.0f));
  return horner(u, 4.776829567e-06f, 1.245425769e-01f, 1.261281528e-01f, 1.029803067e-01f, 1.268497428e-01f,
                -4.600150097e-02f, 1.878680825e-01f, -1.654242887e-01f, 4.306311424e-02f);
}

constexpr float kNearZero = 0.75f;  // where fp32 changes from the odd polynomial to the tail

/// Q(t) alone, for 16-bit results: 2 to the power of a polynomial for log2 Q, one special function instead of
/// two. The polynomial is free where eager PyTorch has no digits left, and goes to minus infinity with t, so
/// that nothing need be clamped. Relative error for bf16 0.0018 up to t = 2, 0.013 up to 5.5 and 0.1 at 13;
/// for fp16 7e-5 up to 1.4, 6e-4 up to 4 and 0.005 at 5.8, where t Q(t) is below half of the smallest fp16.
template <class Element>
__device__ __forceinline__ float tail(float t) {
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return ptx::ex2_approx_ftz(horner(t, -1.0f, -1.146678329e+00f, -4.778322875e-01f, -3.679658473e-02f,
                                      2.897165483e-03f, -8.681075997e-05f));
  } else {
    return ptx::ex2_approx_ftz(horner(t, -1.0f, -1.150184751e+00f, -4.625674188e-01f, -4.891340435e-02f,
                                      5.892470479e-03f, -3.151433193e-04f));
  }
}

template <class Element>
__device__ __forceinline__ float gelu_erf(float z) {
  if constexpr (!std::is_same_v<Element, float>) {
    const float t = fabsf(z);
    return fmaf(-t, tail<Element>(t), fmaxf(z, 0.0f));
  } else {
    const float t = fabsf(z);
    const float y = fmaf(-t, gauss(t) * scaled_tail(t), fmaxf(z, 0.0f));
    const float s = z * z;  // z (1/2 + z R(z^2))
    const float r =
        horner(s, 3.989422754e-01f, -6.649019936e-02f, 9.971741661e-03f, -1.179853152e-03f, 1.018136766e-04f);
    return t < kNearZero ? fmaf(s, r, 0.5f * z) : y;
  }
}

/// g(t) exp(t^2 / 2) for 16-bit results, of `scale` t for t >= 0. The derivative needs no relative accuracy
/// where it is tiny: it is added to averages over the row. Error of g: bf16 6.3e-5, fp16 1.6e-5, a 30th and a
/// 15th of the rounding.
template <class Element>
__device__ __forceinline__ float scaled_slope(float scaled_t, float scale = 1.0f) {
  const float k = 1.0f / scale;  // known to the compiler
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    return horner(scaled_t, 4.99937334e-01f, -7.95510274e-01f * k, 2.35434420e-01f * (k * k),
                  -9.96631879e-02f * (k * k * k), 2.52808696e-02f * (k * k * k * k),
                  -2.73970680e-03f * (k * k * k * k * k));
  } else {
    return horner(scaled_t, 4.99984320e-01f, -7.97151980e-01f * k, 2.44424175e-01f * (k * k),
                  -1.16942017e-01f * (k * k * k), 3.96728492e-02f * (k * k * k * k),
                  -8.04207008e-03f * (k * k * k * k * k), 7.04250584e-04f * (k * k * k * k * k * k));
  }
}

/// 2 gelu'(z) - 1 for 16-bit results, of kGaussScale z: exp(-z^2 / 2) is then 2^(-scaled^2), and what two
/// instructions of gelu' do is left to the caller's next multiplication: dy + dy * this is 2 dy gelu'(z).
constexpr float kGaussScale = 0.84932180f;  // sqrt(log2(e) / 2)
template <class Element>
__device__ __forceinline__ float centred_slope_of_scaled(float scaled) {
  const float twice_gauss = ptx::ex2_approx_ftz(fmaf(-scaled, scaled, 1.0f));
  const float slope = fmaf(-twice_gauss, scaled_slope<Element>(fabsf(scaled), kGaussScale), 1.0f);
  return copysignf(slope, scaled);
}

template <class Element>
__device__ __forceinline__ float gelu_erf_derivative(float z) {
  const float t = fabsf(z);
  if constexpr (!std::is_same_v<Element, float>) {
    return 0.5f + copysignf(fmaf(-gauss(t), scaled_slope<Element>(t), 0.5f), z);
  } else {
    constexpr float kMinusInvSqrt2Pi = -0.39894228f;
    const float g = gauss(t) * fmaf(t, kMinusInvSqrt2Pi, scaled_tail(t));
    const float d = z < 0.0f ? g : 1.0f - g;
    const float r = horner(z * z, 7.978845600e-01f, -2.659614797e-01f, 5.984076046e-02f, -9.495046786e-03f,
                           1.143585910e-03f, -9.759805286e-05f);
    return t < kNearZero ? fmaf(z, r, 0.5f) : d;
  }
}

/// 1 / (1 + exp(-2k (z + 0.044715 z^3))), k = sqrt(2 / pi), and e, that exponential: (1 + tanh(..)) / 2
/// without cancellation.
__device__ __forceinline__ float tanh_gate(float z, float& e) {
  constexpr float kMinus2KLog2E = -2.3022082f;
  const float exponent = z * fmaf(z * z, kMinus2KLog2E * 0.044715f, kMinus2KLog2E);
  e = ptx::ex2_approx_ftz(fminf(exponent, 127.0f));  // finite: infinity times a gate of 0 would be NaN
  const float d = 1.0f + e, r = ptx::rcp_approx_ftz(d);
  return fmaf(r, fmaf(-d, r, 1.0f), r);  // one Newton step: the gate multiplies the result directly
}

__device__ __forceinline__ float gelu_tanh(float z) {
  float e;
  return z * tanh_gate(z, e);
}

__device__ __forceinline__ float gelu_tanh_derivative(float z) {
  constexpr float k2K = 1.5957691f;
  float e;
  const float gate = tanh_gate(z, e);
  const float slope = fmaf(z * z, k2K * 3.0f * 0.044715f, k2K);
  return fmaf(z * gate * (e * gate), slope, gate);  // 1 - gate = e * gate
}

/// gelu(z) with the accuracy that an `Element` can hold.
template <class Element, GeluForm kForm>
__device__ __forceinline__ float gelu(float z) {
  if constexpr (kForm == GeluForm::kErf) return gelu_erf<Element>(z);
  return gelu_tanh(z);
}

/// d gelu(z) / dz.
template <class Element, GeluForm kForm>
__device__ __forceinline__ float gelu_derivative(float z) {
  if constexpr (kForm == GeluForm::kErf) return gelu_erf_derivative<Element>(z);
  return gelu_tanh_derivative(z);
}

}  // namespace plab::cuda
