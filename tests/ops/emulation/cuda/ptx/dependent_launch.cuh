// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/dependent_launch.cuh: grids run one after the other.
#pragma once

namespace plab::cuda::ptx {

inline void launch_dependents() {}
inline void wait_for_previous_grid() {}

}  // namespace plab::cuda::ptx
