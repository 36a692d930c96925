// SPDX-License-Identifier: Apache-2.0
// What host code must know of the device library. Plain C++: the CPU half of an op compiles without a CUDA
// toolkit.
#pragma once

namespace plab::cuda {

/// The two definitions of GELU in use: z * Phi(z), and its approximation by a hyperbolic tangent.
enum class GeluForm { kErf, kTanh };

}  // namespace plab::cuda
