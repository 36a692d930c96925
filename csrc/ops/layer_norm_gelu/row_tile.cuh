// SPDX-License-Identifier: Apache-2.0
// The part of a row that one thread owns, and how it moves: kVecs vectors of 16 bytes. A warp (or kLanes of
// it) has one piece of the row, in which neighbouring lanes touch neighbouring addresses; a lane's vectors
// lie a constant apart.
#pragma once

#include "cuda/ptx/registers.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/row_plan.h"

namespace plab::ops::layer_norm_gelu {

template <class Element_, int kVecs_, Access kAccess_, int kLanes_ = 32>
class RowTile {
 public:
  using Element = Element_;
  static constexpr int kVecs = kVecs_, kVecSize = cuda::kVecSize<Element>, kElements = kVecs * kVecSize;
  static constexpr Access kAccess = kAccess_;
  static constexpr int kLanes = kLanes_;                  // of a warp, which share a piece of a row
  static constexpr int kVecDistance = kLanes * kVecSize;  // in columns, of a thread's vectors
  using Floats = float[kVecs][kVecSize];
  /// A row's elements as they came from memory.
  struct Packed {
    cuda::Vec<Element> vec[kVecs];
  };

  /// Unsigned: a division by a power of two is then one instruction, and an address needs no sign.
  __device__ RowTile(int cols, unsigned thread, unsigned threads)
      : cols_(cols),
        first_(((thread / kLanes * kVecs) * kLanes + thread % kLanes) * kVecSize),
        thread_(thread),
        threads_(threads) {}

  /// Column of this thread's element j in vector i.
  __device__ __forceinline__ int column(int i, int j) const {
    if constexpr (kAccess == Access::kScalar)
      return static_cast<int>((i * kVecSize + j) * threads_ + thread_);
    return static_cast<int>(first_) + i * kVecDistance + j;
  }

  __device__ __forceinline__ bool owns(int i, int j) const {
    if constexpr (kAccess == Access::kExact) return true;
    if constexpr (kAccess == Access::kVector) return column(i, 0) < cols_;
    return column(i, j) < cols_;
  }

  /// Where vector i lies: one address and a constant.
  template <class Pointer>
  __device__ __forceinline__ Pointer at(Pointer row, int i) const {
    return row + first_ + i * kVecDistance;
  }

  /// use(x) for every element x of vector i that is within the row.
  template <class Use>
  __device__ __forceinline__ void each(int i, cuda::Vec<Element> vec, Use use) const {
    float f[kVecSize];
    cuda::unpack(vec, f);
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) {
      if (owns(i, j)) use(f[j]);
    }
  }

  /// This thread's vector i of a row. What lies beyond the row's end is loaded as zero.
  template <bool kStreaming>
  __device__ __forceinline__ cuda::Vec<Element> load_vec(const Element* row, int i) const {
    cuda::Vec<Element> vec{make_uint4(0, 0, 0, 0)};
    if constexpr (kAccess == Access::kScalar) {
      auto* elements = reinterpret_cast<Element*>(&vec);
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        if (owns(i, j)) elements[j] = __ldg(row + column(i, j));
      }
    } else if (owns(i, 0)) {
      const Element* address = at(row, i);
      vec = kStreaming ? cuda::load_streaming(address) : cuda::load_cached(address);
    }
    return vec;
  }

  __device__ __forceinline__ void load(const Element* row, Packed& packed) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) packed.vec[i] = load_vec<true>(row, i);
  }

  /// For good: the packed registers are free for the next row, the compiler does not unpack a second time.
  __device__ __forceinline__ static void unpack(const Packed& packed, Floats& f) {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      cuda::unpack(packed.vec[i], f[i]);
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) cuda::ptx::opaque(f[i][j]);
    }
  }

  __device__ __forceinline__ void store_vec(Element* row, int i, const float (&f)[kVecSize]) const {
    store_packed(row, i, cuda::pack<Element>(f));
  }

  __device__ __forceinline__ void store_packed(Element* row, int i, cuda::Vec<Element> vec) const {
    if constexpr (kAccess == Access::kScalar) {
      const auto* elements = reinterpret_cast<const Element*>(&vec);
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        if (owns(i, j)) row[column(i, j)] = elements[j];
      }
    } else if (owns(i, 0)) {
      cuda::store_streaming(at(row, i), vec);
    }
  }

 private:
  int cols_;
  unsigned first_, thread_, threads_;
};

}  // namespace plab::ops::layer_norm_gelu
