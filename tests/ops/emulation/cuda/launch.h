// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/launch.h: what kernels use of it.
#pragma once

#include <driver_types.h>

namespace plab::cuda {

template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

inline int device_attribute(cudaDeviceAttr) { return 132; }

}  // namespace plab::cuda
