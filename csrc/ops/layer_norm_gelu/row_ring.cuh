// SPDX-License-Identifier: Apache-2.0
// The next rows of a matrix, on their way to shared memory while one is computed. Each thread copies and
// reads its own vectors, so nobody waits for anybody else's, and rows on their way cost no registers.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// Where a row lies in the ring, counted in 16-byte vectors.
struct RingSlot {
  int at;
};

template <class Tile, int kStages>
class RowRing {
 public:
  using Element = typename Tile::Element;

  /// Dynamic shared memory for that many threads.
  static constexpr int shared_bytes(int threads) { return kStages * Tile::kVecs * threads * cuda::kVecBytes; }

  /// `thread` of the `threads` of the block that use the ring.
  __device__ RowRing(const Tile& tile, void* shared, int thread, int threads)
      : tile_(tile),
        shared_(static_cast<uint4*>(shared) + thread / 32 * (Tile::kVecs * 32) + thread % 32),
        row_size_(Tile::kVecs * threads) {}

  /// Starts the copy of a row; commit_group follows once for all matrices.
  __device__ __forceinline__ void request(const Element* row, RingSlot slot) {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if constexpr (Tile::kAccess == Access::kScalar) {
        shared_[slot.at + i * 32] = tile_.template load_vec<false>(row, i).bits;
      } else if (tile_.owns(i, 0)) {
        cuda::ptx::cp_async_cg(shared_ + slot.at + i * 32, tile_.at(row, i));
      } else {
        shared_[slot.at + i * 32] = make_uint4(0, 0, 0, 0);
      }
    }
  }

  __device__ __forceinline__ cuda::Vec<Element> vec(RingSlot slot, int i) const {
    return {shared_[slot.at + i * 32]};
  }
  __device__ __forceinline__ void put(RingSlot slot, int i, cuda::Vec<Element> vec) {
    shared_[slot.at + i * 32] = vec.bits;
  }

  __device__ __forceinline__ RingSlot next(RingSlot slot) const {
    const int at = slot.at + row_size_;
    return {at == kStages * row_size_ ? 0 : at};
  }

 private:
  Tile tile_;
  uint4* shared_;
  int row_size_;
};

/// One row in registers, with the ring's way to reach it.
template <class Tile>
class RowInRegisters {
 public:
  using Element = typename Tile::Element;
  __device__ __forceinline__ void load(const Tile& tile, const Element* row) { tile.load(row, packed_); }
  __device__ __forceinline__ cuda::Vec<Element> vec(RingSlot, int i) const { return packed_.vec[i]; }
  __device__ __forceinline__ void put(RingSlot, int i, cuda::Vec<Element> vec) { packed_.vec[i] = vec; }

 private:
  typename Tile::Packed packed_;
};

}  // namespace plab::ops::layer_norm_gelu
