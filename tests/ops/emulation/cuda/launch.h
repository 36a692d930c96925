// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/launch.h: what kernels use of it.
#pragma once

namespace plab::cuda {

template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}

}  // namespace plab::cuda
