// SPDX-License-Identifier: Apache-2.0
// In place of the instructions of csrc/cuda/ptx/approx.cuh: the functions they approximate.
#pragma once

#include <cmath>

namespace plab::cuda::ptx {

inline float ex2_approx_ftz(float x) { return std::exp2(x); }
inline float lg2_approx_ftz(float x) { return std::log2(x); }
inline float rcp_approx_ftz(float x) { return 1 / x; }

}  // namespace plab::cuda::ptx
