// SPDX-License-Identifier: Apache-2.0
// In place of the instructions of csrc/cuda/ptx/approx.cuh: the functions they approximate.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace plab::cuda::ptx {

inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  __half_raw x[2], y[2], z[2];
  std::memcpy(x, &a, 4), std::memcpy(y, &b, 4), std::memcpy(z, &c, 4);
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i) {  // exact in double, but for the last rounding
    const auto value = [](__half_raw h) { return static_cast<double>(__half2float(__half(h))); };
    const __half_raw rounded = __double2half(value(x[i]) * value(y[i]) + value(z[i]));
    result |= static_cast<uint32_t>(rounded.x) << (16 * i);
  }
  return result;
}

inline uint32_t min_f16x2(uint32_t a, uint32_t b) {
  __half_raw x[2], y[2];
  std::memcpy(x, &a, 4), std::memcpy(y, &b, 4);
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i) {
    const float left = __half2float(__half(x[i])), right = __half2float(__half(y[i]));
    result |= static_cast<uint32_t>(std::fmin(left, right) == left ? x[i].x : y[i].x) << (16 * i);
  }
  return result;
}

inline float ex2_approx_ftz(float x) { return std::exp2(x); }
inline float rcp_approx_ftz(float x) { return 1 / x; }

inline float max_nan(float a, float b) { return a != a || b != b ? NAN : std::fmax(a, b); }

}  // namespace plab::cuda::ptx
