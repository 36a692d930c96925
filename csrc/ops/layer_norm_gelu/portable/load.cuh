// SPDX-License-Identifier: Apache-2.0
// How a thread loads its part of a row, and the weights that belong to it.
//
//   RowTile          the part of a row that one thread owns
//   RowRing          the next rows of a matrix, prefetched into shared memory (cp.async)
//   RowInRegisters   one row, loaded straight into registers
//   WeightStore      weight and bias, which are the same for all rows
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

/// How a thread reaches its elements.
enum class Access {
  kExact,    // 16-byte vectors that cover the row exactly: no bounds to check
  kVector,   // 16-byte vectors, some of which lie beyond the row's end
  kScalar,   // element by element: d or an address is not a multiple of 16 bytes
  kShifted,  // 16-byte vectors; the row's neighbours have elements in the first and in the last (shifted.cuh)
};

/// Whether the rows have a residual. kEither: the params say it, so that one kernel is compiled instead of two.
enum class Residual { kNo, kYes, kEither };

/// then() where rows have a residual: nothing is compiled where they have none.
template <Residual kResidual, class Then>
__device__ __forceinline__ void with_residual(const void* residual, Then&& then) {
  if constexpr (kResidual == Residual::kYes) then();
  if constexpr (kResidual == Residual::kEither) {
    if (residual != nullptr) then();
  }
}

constexpr int kMaxThreadsPerRow = 512;
constexpr int kWarpsPerBlock = 4;  // where each warp has its own row, or two

/// kVecs vectors of 16 bytes. A warp (or kLanes of it) has one piece of the row, in which neighbouring lanes
/// touch neighbouring addresses; a lane's vectors lie a constant apart.
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

  /// Whether a warp leaves out vector i, because the row has nothing there.
  __device__ __forceinline__ static constexpr bool skips(int) { return false; }

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

  /// Starts the copy of vector i to shared memory. `is_last`: nothing of the matrix is behind this row.
  __device__ __forceinline__ void copy_vec(const Element* row, int i, uint4* to,
                                           [[maybe_unused]] bool is_last) const {
    if constexpr (kAccess == Access::kScalar) {
      *to = load_vec<false>(row, i).bits;
    } else if (owns(i, 0)) {
      cuda::ptx::cp_async_cg(to, at(row, i));
    } else {
      *to = make_uint4(0, 0, 0, 0);
    }
  }
  /// Called when a row's vectors are there, before they are read.
  __device__ __forceinline__ void arrived(uint4*) const {}

  __device__ __forceinline__ void load(const Element* row, Packed& packed) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) packed.vec[i] = load_vec<true>(row, i);
  }

  /// Unpacks once: the packed registers are free for the next row, and the compiler cannot unpack a second time.
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

/// The part of a thread of the group. `row`: one of the group's, in memory.
template <class Tile, class Group>
__device__ __forceinline__ Tile tile_of(const Group& group, int64_t cols, [[maybe_unused]] const void* row) {
  if constexpr (Tile::kAccess == Access::kShifted)
    return Tile(static_cast<int>(cols), group.rank(), group.size(), row);
  else
    return Tile(static_cast<int>(cols), group.rank(), group.size());
}

/// Where a row lies in the ring, counted in 16-byte vectors.
struct RingSlot {
  int at;
};

/// Each thread copies and reads its own vectors, so no thread waits for another, and prefetched rows take no
/// registers.
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
  __device__ __forceinline__ void request(const Element* row, RingSlot slot, bool is_last) {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) tile_.copy_vec(row, i, shared_ + slot.at + i * 32, is_last);
  }
  __device__ __forceinline__ void arrived(RingSlot slot) { tile_.arrived(shared_ + slot.at); }

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

enum class Weights {
  kShared,  // as fp32 in shared memory: half an instruction per element and row, 8 bytes of shared memory per
            // column
  kRegisters,  // packed in registers: two unpacking instructions per element and row
  kFloats,     // as fp32 in registers: no instruction, two registers an element
  kCached,     // read again for each row, from L1 after the first row
};

/// The weights must take neither the registers that prefetched rows need, nor an unpacking per row.
/// kScaled: all of them are multiplied by kGaussScale.
template <class Tile, Weights kWeights, bool kScaled = false>
class WeightStore {
 public:
  using Element = typename Tile::Element;
  using Floats = float[Tile::kVecSize];
  static constexpr int kQuads = Tile::kVecSize / 4;  // 16-byte accesses to shared memory per vector

  /// Dynamic shared memory of a group of that many threads.
  static constexpr int shared_bytes(int threads) {
    return kWeights == Weights::kShared ? 2 * Tile::kElements * threads * static_cast<int>(sizeof(float)) : 0;
  }

  /// `bias` may be null. Synchronise the block before the first get(): one group writes `shared` for all of
  /// them.
  template <class Group>
  __device__ WeightStore(const Tile& tile, const Element* weight, const Element* bias, const Group& group,
                         float4* shared)
      : tile_(tile), weight_(weight), bias_(bias), shared_(shared + thread_offset(group.local_rank())) {
    if constexpr (kWeights == Weights::kCached) return;
    load();
    if constexpr (kWeights == Weights::kFloats) {
      Tile::unpack(w_, weight_floats_);
      Tile::unpack(b_, bias_floats_);
    }
    if (kWeights == Weights::kShared && group.leads()) {
#pragma unroll
      for (int i = 0; i < Tile::kVecs; ++i) {
        put(i, w_.vec[i]);
        put(Tile::kVecs + i, b_.vec[i]);
      }
    }
  }

  /// Before each row.
  __device__ __forceinline__ void next_row() {
    if constexpr (kWeights == Weights::kCached) load();
    if constexpr (kWeights == Weights::kRegisters) {
      // Else they are unpacked outside of the loop, into twice the registers.
#pragma unroll
      for (int i = 0; i < Tile::kVecs; ++i) {
        cuda::ptx::opaque(w_.vec[i].bits);
        cuda::ptx::opaque(b_.vec[i].bits);
      }
    }
  }

  /// As get(), but from memory, with an index that need not be known to the compiler.
  __device__ __forceinline__ void reload(int i, Floats& weight, Floats& bias) const {
    cuda::unpack(tile_.template load_vec<false>(weight_, i), weight);
    cuda::Vec<Element> packed_bias{make_uint4(0, 0, 0, 0)};
    if (bias_ != nullptr) packed_bias = tile_.template load_vec<false>(bias_, i);
    cuda::unpack(packed_bias, bias);
  }

  /// This thread's weights and biases for vector i.
  __device__ __forceinline__ void get(int i, Floats& weight, Floats& bias) const {
    if constexpr (kWeights == Weights::kShared) {
      take(i, weight);
      take(Tile::kVecs + i, bias);
    } else if constexpr (kWeights == Weights::kFloats) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) weight[j] = weight_floats_[i][j], bias[j] = bias_floats_[i][j];
    } else if constexpr (kWeights == Weights::kCached) {
      reload(i, weight, bias);
    } else {
      cuda::unpack(w_.vec[i], weight);
      cuda::unpack(b_.vec[i], bias);
    }
    if constexpr (kWeights != Weights::kShared) scale(weight), scale(bias);
  }

 private:
  __device__ __forceinline__ void load() {
    b_ = {};
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      w_.vec[i] = tile_.template load_vec<false>(weight_, i);
      if (bias_ != nullptr) b_.vec[i] = tile_.template load_vec<false>(bias_, i);
    }
  }

  __device__ static void scale(Floats& f) {
    if constexpr (kScaled) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) f[j] *= cuda::kGaussScale;
    }
  }

  // Each warp has its own piece, in which a lane's quads lie a warp apart: neighbouring lanes, neighbouring
  // banks.
  __device__ static int thread_offset(int thread) {
    return thread / 32 * (2 * Tile::kVecs * kQuads * 32) + thread % 32;
  }
  __device__ __forceinline__ void put(int v, const cuda::Vec<Element>& packed) {
    Floats f;
    cuda::unpack(packed, f);
    scale(f);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      shared_[(v * kQuads + q) * 32] = make_float4(f[4 * q], f[4 * q + 1], f[4 * q + 2], f[4 * q + 3]);
    }
  }
  __device__ __forceinline__ void take(int v, Floats& f) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 quad = shared_[(v * kQuads + q) * 32];
      f[4 * q] = quad.x, f[4 * q + 1] = quad.y, f[4 * q + 2] = quad.z, f[4 * q + 3] = quad.w;
    }
  }

  Tile tile_;
  const Element* weight_;
  const Element* bias_;
  float4* shared_;
  typename Tile::Packed w_, b_;
  typename Tile::Floats weight_floats_, bias_floats_;
};

}  // namespace plab::ops::layer_norm_gelu
