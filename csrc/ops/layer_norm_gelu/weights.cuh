// SPDX-License-Identifier: Apache-2.0
// Where weight and bias wait between the rows of a group. They are the same for all rows, so they shall cost
// neither registers that rows in flight need, nor an unpacking for each row.
#pragma once

#include "cuda/math.cuh"
#include "cuda/ptx/registers.cuh"
#include "ops/layer_norm_gelu/row_tile.cuh"

namespace plab::ops::layer_norm_gelu {

enum class Weights {
  kShared,  // as fp32 in shared memory: half an instruction per element and row, 8 bytes of shared memory per
            // column
  kRegisters,  // packed in registers: two unpacking instructions per element and row
  kFloats,     // as fp32 in registers: no instruction, two registers an element
  kCached,     // read anew for each row, from L1 after the first
};

/// kScaled: they are all multiplied by kGaussScale.
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
#pragma unroll
      for (int i = 0; i < Tile::kVecs;
           ++i) {  // else they are unpacked outside of the loop, into twice the registers
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
