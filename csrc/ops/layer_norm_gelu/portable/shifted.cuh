// SPDX-License-Identifier: Apache-2.0
// Shifted rows: what a thread has of a row that starts anywhere, in whole 16-byte vectors.
//
// The vectors are counted from the multiple of 16 bytes at which, or behind which, the row starts. The rows in front of
// it and behind it have elements in its first and in its last vector:
//
//   18 columns of bf16, rows 0, 4, 8, ... of a group; row 4 starts 4 elements behind a multiple of 16 bytes
//     row      |3 . . .|4 . . . . . . . . . . . . . . . .|5 . . . . .
//     vectors  |0              |1              |2              |
//
// All rows of a group are so far apart that they start at the same distance from 16 bytes. So a thread has the same
// columns in each row, and its weights and sums stay in registers. What is not the row's is zero in the ring, and is
// never stored.
#pragma once

#include "ops/layer_norm_gelu/portable/load.cuh"

namespace plab::ops::layer_norm_gelu {

template <class Element_, int kVecs_>
class RowTile<Element_, kVecs_, Access::kShifted, cuda::kWarpSize>
    : public RowTile<Element_, kVecs_, Access::kExact, cuda::kWarpSize> {
  using Base = RowTile<Element_, kVecs_, Access::kExact, cuda::kWarpSize>;

 public:
  using Element = Element_;
  using Base::kVecs, Base::kVecSize, Base::kVecDistance;
  static constexpr Access kAccess = Access::kShifted;

  /// `row`: any of the group's.
  __device__ RowTile(int cols, unsigned thread, unsigned threads, const void* row)
      : Base(cols, thread, threads), cols_(cols) {
    const auto shift = static_cast<int>(reinterpret_cast<uint64_t>(row) % cuda::kVecBytes / sizeof(Element));
    first_ = Base::column(0, 0) - shift;
    const int of_warp = first_ - static_cast<int>(thread % cuda::kWarpSize) * kVecSize;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      if (of_warp + i * kVecDistance < cols) used_ = i + 1;
      if (column(i, 0) >= 0 && column(i, kVecSize) <= cols) whole_ |= 1u << i;
    }
  }

  /// Of this thread's element j in vector i: negative in front of the row.
  __device__ __forceinline__ int column(int i, int j) const { return first_ + i * kVecDistance + j; }
  __device__ __forceinline__ bool owns(int i, int j) const {
    return static_cast<unsigned>(column(i, j)) < static_cast<unsigned>(cols_);
  }
  /// The same in all lanes of a warp: none of them has any of the row in its vector i.
  __device__ __forceinline__ bool skips(int i) const { return i >= used_; }

  /// use(x) for every element x of vector i that is within the row.
  template <class Use>
  __device__ __forceinline__ void each(int i, cuda::Vec<Element> vec, Use use) const {
    float f[kVecSize];
    cuda::unpack(vec, f);
    if (is_whole(i)) {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) use(f[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        if (owns(i, j)) use(f[j]);
      }
    }
  }

  /// Of weight or bias, which do not start where the rows do.
  template <bool kStreaming>
  __device__ __forceinline__ cuda::Vec<Element> load_vec(const Element* weight, int i) const {
    cuda::Vec<Element> vec{make_uint4(0, 0, 0, 0)};
    auto* elements = reinterpret_cast<Element*>(&vec);
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) {
      if (owns(i, j)) elements[j] = __ldg(weight + column(i, j));
    }
    return vec;
  }

  /// Starts the copy of vector i. The matrix's last elements are read one by one: a copy of a part reads nothing more,
  /// but compute-sanitizer takes it for 16 bytes, of which some would lie behind the matrix.
  __device__ __forceinline__ void copy_vec(const Element* row, int i, uint4* to, bool is_last) const {
    if (skips(i)) return;
    const int left = cols_ - column(i, 0);
    if (left >= kVecSize) return cuda::ptx::cp_async_cg(to, row + column(i, 0));
    if (left > 0 && !is_last)
      return cuda::ptx::cp_async_cg_part(to, row + column(i, 0),
                                         static_cast<unsigned>(left) * sizeof(Element));
    *to = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int j = 0; j < left; ++j) reinterpret_cast<Element*>(to)[j] = row[column(i, j)];
  }
  /// Once a row's vectors are there, of which `first` is this thread's: removes what lies in front of the row.
  __device__ __forceinline__ void arrived(uint4* first) const {
#pragma unroll 1
    for (int j = 0; j < -first_; ++j) reinterpret_cast<Element*>(first)[j] = cuda::from_float<Element>(0.0f);
  }

  __device__ __forceinline__ void store_vec(Element* row, int i, const float (&f)[kVecSize]) const {
    cuda::Vec<Element> vec = cuda::pack<Element>(f);
    if (is_whole(i)) return cuda::store_streaming(row + column(i, 0), vec);
#pragma unroll 1
    for (int j = 0; j < kVecSize; ++j, cuda::drop_first(vec)) {
      if (owns(i, j)) row[column(i, j)] = cuda::first(vec);
    }
  }

 private:
  __device__ __forceinline__ bool is_whole(int i) const { return (whole_ >> i & 1) != 0; }

  int cols_, first_;
  int used_ = 0;        // of the warp's vectors, those that have some of the row
  unsigned whole_ = 0;  // bit i: vector i has nothing else
};

}  // namespace plab::ops::layer_norm_gelu
