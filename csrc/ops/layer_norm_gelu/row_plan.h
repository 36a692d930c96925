// SPDX-License-Identifier: Apache-2.0
// How a row is cut for the threads that share it. Plain C++, chosen on the host.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace plab::ops::layer_norm_gelu {

/// How a thread reaches its elements.
enum class Access {
  kExact,   // 16-byte vectors that cover the row exactly: no bounds to check
  kVector,  // 16-byte vectors, some of which lie beyond the row's end
  kScalar,  // element by element: d or an address is no multiple of 16 bytes
};

struct RowPlan {
  int threads;  // per row, a multiple of 32; 32 means that a warp has the row to itself
  int vecs;     // 16-byte vectors per thread; 0: the row is too long for a block
  Access access;
};

constexpr int kMaxThreadsPerRow = 512;
constexpr int kWarpsPerBlock = 4;  // where each warp has its own row, or two

/// Which rows a group of threads has, and in which order.
struct RowOrder {
  int64_t rows_per_group;
  bool interleaved;      // group g has rows g, g + groups, ... instead of a run
  int64_t groups_ahead;  // the group that will be started so many groups later is likely to start next
  float inverse_cols;
};

/// `vec_size` elements fill 16 bytes. `choices`: vectors per thread for which kExact kernels exist, the best
/// first; kVector ones exist for 1 and the first choice, kScalar ones for 1. `aligned`: every row of every
/// tensor starts at a multiple of 16 bytes.
inline RowPlan plan_row(int64_t cols, int vec_size, std::initializer_list<int> choices, bool aligned) {
  const auto warps_of = [](int64_t threads) { return static_cast<int>((threads + 31) / 32 * 32); };
  const int64_t vecs_per_row = (cols + vec_size - 1) / vec_size;
  if (aligned && cols % vec_size == 0) {
    for (const int vecs : choices) {
      const int64_t threads = vecs_per_row / vecs;
      if (vecs_per_row % (vecs * 32) == 0 && threads >= 32 && threads <= kMaxThreadsPerRow)
        return {static_cast<int>(threads), vecs, Access::kExact};
    }
    if (vecs_per_row <= 32) return {32, 1, Access::kVector};
    const int most = *choices.begin();
    if (vecs_per_row <= most * kMaxThreadsPerRow)
      return {warps_of((vecs_per_row + most - 1) / most), most, Access::kVector};
  } else if (vecs_per_row <= kMaxThreadsPerRow) {
    return {warps_of(vecs_per_row), 1, Access::kScalar};
  }
  return {kMaxThreadsPerRow, 0, Access::kScalar};
}

}  // namespace plab::ops::layer_norm_gelu
