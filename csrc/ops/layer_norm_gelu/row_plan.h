// SPDX-License-Identifier: Apache-2.0
// How a row is cut for the threads that share it. Plain C++, chosen on the host, the same for forward and
// backward.
#pragma once

#include <cstdint>

namespace plab::ops::layer_norm_gelu {

/// How a thread reaches its elements.
enum class Access {
  kExact,   // 16-byte vectors that cover the row exactly: no bounds to check
  kVector,  // 16-byte vectors, some of which lie beyond the row's end
  kScalar,  // element by element: d or an address is no multiple of 16 bytes
};

struct RowPlan {
  int threads;  // per row, a multiple of 32; 32 means that a warp has the row to itself
  int vecs;     // 16-byte vectors per thread; 0: the row is too long to be held in registers
  Access access;
};

constexpr int kMaxThreadsPerRow = 512;

/// `vec_size` elements fill 16 bytes and a thread may hold `max_vecs` vectors, 2, 4 or 8. `aligned`: every
/// row of every tensor starts at a multiple of 16 bytes. Kernels exist for kExact with 1, 2, 3, 4 and
/// max_vecs vectors, for kVector with 1 and max_vecs, for kScalar with 1.
inline RowPlan plan_row(int64_t cols, int vec_size, int max_vecs, bool aligned) {
  const auto warps_of = [](int64_t threads) { return static_cast<int>((threads + 31) / 32 * 32); };
  const int64_t vecs_per_row = (cols + vec_size - 1) / vec_size;
  if (aligned && cols % vec_size == 0) {
    for (const int vecs : {max_vecs, 4, 3, 2, 1}) {
      const int64_t threads = vecs_per_row / vecs;
      const int fewest = vecs > 4 ? 64 : 32;
      if (vecs <= max_vecs && vecs_per_row % (vecs * 32) == 0 && threads >= fewest &&
          threads <= kMaxThreadsPerRow) {
        return {static_cast<int>(threads), vecs, Access::kExact};
      }
    }
    if (vecs_per_row <= 32) return {32, 1, Access::kVector};
    if (vecs_per_row <= max_vecs * kMaxThreadsPerRow) {
      const int64_t threads = (vecs_per_row + max_vecs - 1) / max_vecs;
      return {warps_of(threads > 32 || max_vecs <= 4 ? threads : 33), max_vecs, Access::kVector};
    }
  } else if (vecs_per_row <= kMaxThreadsPerRow) {
    return {warps_of(vecs_per_row), 1, Access::kScalar};
  }
  return {kMaxThreadsPerRow, 0, Access::kScalar};
}

}  // namespace plab::ops::layer_norm_gelu
