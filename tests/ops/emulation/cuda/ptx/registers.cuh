// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/registers.cuh, which only speaks to the GPU's register allocator.
#pragma once

namespace plab::cuda::ptx {

template <class T>
void opaque(T&) {}

}  // namespace plab::cuda::ptx
