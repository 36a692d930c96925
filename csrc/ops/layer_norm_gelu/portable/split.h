// SPDX-License-Identifier: Apache-2.0
// How a row is split among threads, and which rows are packed instead.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "ops/layer_norm_gelu/portable/load.cuh"

namespace plab::ops::layer_norm_gelu::portable {

/// How a row is split among the threads that share it.
struct RowSplit {
  int threads;  // per row, a multiple of 32; 32 means that a warp has the row to itself
  int vecs;     // 16-byte vectors per thread; 0: the row is too long for a block
  Access access;
};

/// `vec_size` elements fill 16 bytes. `choices`: vectors per thread for which kExact kernels exist, the best
/// first; kVector ones exist for 1 and the first choice, kScalar ones for 1. `aligned`: every row of every
/// tensor starts at a multiple of 16 bytes.
inline RowSplit split_row(int64_t cols, int vec_size, std::initializer_list<int> choices, bool aligned) {
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

/// Threads and columns of rows that half a warp shares. For 16-bit rows with more than kManyColumnsEach columns per
/// thread, a thread has 64 columns if they divide evenly.
constexpr int kHalfWarp = 16, k48Columns = 48 / 8;
constexpr int64_t kManyColumnsEach = 8192;

/// Rows that half a warp shares.
template <class Element>
constexpr bool is_for_half_warp(int64_t cols) {
  return cols == 32 * kHalfWarp || (sizeof(Element) == 2 && cols == 48 * kHalfWarp);
}

/// Vectors per thread, best choice first: 32 columns, or 24, 16, 8.
template <class Element>
RowSplit split_forward_row(int64_t cols, bool aligned) {
  constexpr bool k16Bit = sizeof(Element) == 2;
  constexpr int k32Columns = 32 / cuda::kVecSize<Element>;
  if (aligned && is_for_half_warp<Element>(cols))
    return {kHalfWarp, cols == 32 * kHalfWarp ? k32Columns : k48Columns, Access::kExact};
  if (k16Bit && aligned && cols > kManyColumnsEach && cols <= 2 * kManyColumnsEach && cols % 2048 == 0)
    return {static_cast<int>(cols / 64), 2 * k32Columns, Access::kExact};
  if constexpr (k16Bit) return split_row(cols, 8, {4, 3, 2, 1}, aligned);
  return split_row(cols, 4, {8, 6, 4, 2, 1}, aligned);
}

/// With this few rows every thread gets as little work as possible.
constexpr int64_t kFewRows = 8;

/// Of the backward. Vectors per thread, the best first: 16 columns, or 24, 8 and 4.
template <class Element>
RowSplit split_backward_row(int64_t rows, int64_t cols, bool aligned) {
  if (rows <= kFewRows) {
    const RowSplit split = split_row(cols, cuda::kVecSize<Element>, {1, 2}, aligned);
    if (split.access == Access::kExact) return split;
  }
  if constexpr (sizeof(Element) == 2) return split_row(cols, 8, {2, 3, 1}, aligned);
  return split_row(cols, 4, {4, 6, 2, 1}, aligned);
}

/// Which rows are packed (packed.cuh): those whose own threads would have no whole vectors, or too few. All limits are
/// what was measured on a GPU: docs/notebook/layer_norm_gelu_widths.md.
constexpr int64_t kFewestPackedColumns = 32, kFewestPackedRows = 1024;

/// `split`: of a row that has its own threads. `least_busy`: the part of its threads' vectors that it must fill, or it
/// is faster packed.
template <class Element>
bool is_packed(int64_t rows, int64_t cols, const RowSplit& split, int64_t most_columns, float least_busy) {
  if (rows < kFewestPackedRows || cols < kFewestPackedColumns || cols > most_columns) return false;
  const int room = cuda::kVecSize<Element> * split.threads * split.vecs;
  return split.access == Access::kScalar ||
         (split.access == Access::kVector &&
          static_cast<float>(cols) < least_busy * static_cast<float>(room));
}

/// A row that fills less than three quarters of its lanes is faster packed if each has one vector; of lanes with four
/// vectors, less than two thirds.
template <class Element>
bool is_packed_forward(int64_t rows, int64_t cols, bool aligned) {
  constexpr bool k16Bit = sizeof(Element) == 2;
  const RowSplit split = split_forward_row<Element>(cols, aligned);
  return is_packed<Element>(rows, cols, split, k16Bit ? 2304 : 1024,
                            split.vecs == 1 ? 0.76f
                            : k16Bit        ? 0.66f
                                            : 0.40f);
}

template <class Element>
bool is_packed_backward(int64_t rows, int64_t cols, bool aligned) {
  constexpr bool k16Bit = sizeof(Element) == 2;
  return is_packed<Element>(rows, cols, split_backward_row<Element>(rows, cols, aligned), k16Bit ? 2048 : 768,
                            k16Bit ? 0.77f : 0.80f);
}

/// Which rows that are not packed are shifted (shifted.cuh), on GPUs that have clusters: those without whole vectors,
/// with enough columns that the first and the last vector do not matter. Rows with whole vectors are where no other
/// kernel supports them.
template <class Element>
bool is_shifted(int64_t cols, const RowSplit& split, int64_t too_few) {
  const bool is_split =
      split.access == Access::kScalar && (split.vecs > 0 || cols % cuda::kVecSize<Element> != 0);
  return is_split && cols > too_few;
}
template <class Element>
bool is_shifted_forward(int64_t cols, bool aligned) {
  return is_shifted<Element>(cols, split_forward_row<Element>(cols, aligned),
                             sizeof(Element) == 2 ? 1024 : 512);
}
template <class Element>
bool is_shifted_backward(int64_t rows, int64_t cols, bool aligned) {
  return is_shifted<Element>(cols, split_backward_row<Element>(rows, cols, aligned),
                             sizeof(Element) == 2 ? 1024 : 768);
}

}  // namespace plab::ops::layer_norm_gelu::portable
