// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/dynamic_shared.cuh: each block of a cluster has its own.
#pragma once

#include <cstring>

namespace plab::cuda::ptx {

constexpr int kSharedQuads = 16384;
alignas(256) inline float4 dynamic_shared_of[16][kSharedQuads];
inline float4* dynamic_shared() { return dynamic_shared_of[on_cpu::rank]; }
/// NaN everywhere, as far as anybody can tell.
inline void clear_dynamic_shared() { std::memset(dynamic_shared_of, 0xff, sizeof dynamic_shared_of); }

}  // namespace plab::cuda::ptx
