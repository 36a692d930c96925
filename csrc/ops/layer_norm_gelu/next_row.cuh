// SPDX-License-Identifier: Apache-2.0
// The next row of a matrix, on its way while the present one is computed.
#pragma once

#include "cuda/ptx/cp_async.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

/// Where it arrives.
enum class Ahead {
  kRegisters,  // 4 registers a vector
  kShared,     // asynchronous copies to shared memory, no registers; 16-byte vectors only
};

template <class Tile, Ahead kAhead>
class NextRow {
 public:
  using Element = typename Tile::Element;
  static_assert(kAhead == Ahead::kRegisters || Tile::kAccess != Access::kScalar);

  /// Dynamic shared memory of a group of that many threads.
  static constexpr int shared_bytes(int threads) {
    return kAhead == Ahead::kShared ? Tile::kVecs * threads * cuda::kVecBytes : 0;
  }

  __device__ NextRow(const Tile& tile, float4* shared, int thread, int threads)
      : tile_(tile), shared_(reinterpret_cast<uint4*>(shared) + thread), threads_(threads) {}

  __device__ __forceinline__ void request(const Element* row) {
    if constexpr (kAhead == Ahead::kRegisters) {
      tile_.load(row, packed_);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::kVecs; ++i) {
        if (tile_.owns(i, 0)) {
          cuda::ptx::cp_async_cg(shared_ + i * threads_, row + tile_.column(i, 0));
        } else {
          shared_[i * threads_] = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }

  /// The row last requested. Each thread copies and takes its own vectors: it waits for itself alone.
  __device__ __forceinline__ void take(typename Tile::Floats& f) {
    if constexpr (kAhead == Ahead::kShared) {
      cuda::ptx::cp_async_wait_all();
#pragma unroll
      for (int i = 0; i < Tile::kVecs; ++i) packed_.vec[i].bits = shared_[i * threads_];
    }
    Tile::unpack(packed_, f);
  }

 private:
  Tile tile_;
  uint4* shared_;
  int threads_;
  typename Tile::Packed packed_;
};

}  // namespace plab::ops::layer_norm_gelu
