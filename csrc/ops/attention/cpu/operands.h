// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "ops/attention/cpu/mask.h"
#include "ops/attention/cpu/simd.h"

// The operands of a task: rows of views, its workspace, and Fma, its matrix multiplications in the tensors' own
// precision. amx.h has the 16-bit counterpart for CPUs with matrix tiles.
namespace plab::ops::attention::cpu {

inline int64_t blocks_of(int64_t rows) { return (rows + kBlock - 1) / kBlock; }
inline int64_t padded(int64_t dim) { return (dim + 31) / 32 * 32; }  // two vectors of 16 floats

template <class T>
T* row_at(const View& view, int64_t batch, int64_t row, int64_t head) {
  return static_cast<T*>(view.data) + batch * view.batch + row * view.row + head * view.head;
}

// Memory aligned to a cache line: a vector that crosses two lines costs two accesses.
template <class Acc>
class Lines {
 public:
  explicit Lines(int64_t count) : memory_(new Acc[static_cast<size_t>(count) + kLine / sizeof(Acc)]) {}
  Acc* begin() const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + ((at + kLine - 1) / kLine * kLine - at) / sizeof(Acc);
  }

 private:
  static constexpr size_t kLine = 64;
  std::unique_ptr<Acc[]> memory_;
};

// Workspace of one thread, allocated once and reused by all its tasks. Pieces are multiples of kBlock elements,
// so each starts at a cache line.
template <class Acc>
struct Scratch {
  const Lines<Acc> memory;
  int64_t used = 0;
  explicit Scratch(int64_t count) : memory(count) {}
  Acc* take(int64_t count) {
    Acc* at = memory.begin() + used;
    used += count;
    return at;
  }
};

// Where rows begin in a view.
struct Place {
  int64_t batch, row, head;
};

// Rows of a view converted to Acc and packed densely, with zeros up to the padded width.
template <class T, class Acc>
PLAB_INLINE void pack(Acc* to, const View& view, const Place& at, int64_t rows, int64_t dim, int64_t wide) {
  const T* from = row_at<const T>(view, at.batch, at.row, at.head);
  for (int64_t i = 0; i < rows; ++i, from += view.row, to += wide) {
    for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<Acc>(from[d]);
    for (int64_t d = dim; d < wide; ++d) to[d] = Acc(0);
  }
}

// A task's products by fused multiply-adds. Every product is (keys x depth) by (depth x queries), or adds to
// rows of the padded width.
template <class T, class Acc, int kBytes>
struct Fma {
  using S = Simd<Acc, kBytes>;

  // Of one block of queries over blocks of keys.
  class Forward {
   public:
    static int64_t scratch(int64_t dim) { return 2 * kBlock * padded(dim); }
    PLAB_INLINE Forward(Scratch<Acc>& scratch, const Problem& p)
        : dim_(p.head_dim),
          dim_v_(p.head_dim_v),
          wide_(padded(p.widest())),
          query_(scratch.take(wide_ * kBlock)),
          space_(scratch.take(kBlock * wide_)) {}

    PLAB_INLINE void load_queries(const View& view, const Place& at, int64_t rows, Acc factor) {
      pack<T, Acc>(space_, view, at, rows, dim_, wide_);
      transpose<Acc, kBytes, kBlock>(query_, space_, wide_, int(rows), int(wide_), factor);
    }
    // score[key][query] = key · query · factor
    PLAB_INLINE void scores(Acc* score, const View& view, const Place& at, int64_t keys) {
      const Rows k = rows_of(view, at, keys, dim_);
      product<Acc, kBytes, false>(score, kBlock, {k.data, k.stride, 1}, query_, kBlock, int(keys), kBlock,
                                  int(dim_));
    }
    // out += scoreᵀ V
    PLAB_INLINE void add_values(Acc* out, const Acc* score, const View& view, const Place& at, int64_t rows,
                                int64_t keys) {
      const Rows v = rows_of(view, at, keys, dim_v_);
      product<Acc, kBytes, true>(out, wide_, {score, 1, kBlock}, v.data, v.stride, int(rows), int(wide_),
                                 int(keys));
    }

   private:
    struct Rows {
      const Acc* data;
      int64_t stride;
    };
    // In place where the view's memory already is what the product reads.
    PLAB_INLINE Rows rows_of(const View& view, const Place& at, int64_t rows, int64_t dim) {
      if constexpr (std::is_same_v<T, Acc>) {
        if (dim == wide_) return {row_at<const T>(view, at.batch, at.row, at.head), view.row};
      }
      pack<T, Acc>(space_, view, at, rows, dim, wide_);
      return {space_, wide_};
    }
    const int64_t dim_, dim_v_, wide_;
    Acc* const query_;
    Acc* const space_;
  };

  // Of a run of keys, packed once, over blocks of queries.
  class Backward {
   public:
    static int64_t scratch(int64_t dim, int64_t keys) { return (4 * kBlock + 2 * keys) * padded(dim); }
    PLAB_INLINE Backward(Scratch<Acc>& scratch, const Problem& p, int64_t keys)
        : dim_(p.head_dim),
          dim_v_(p.head_dim_v),
          wide_(padded(p.widest())),
          query_(scratch.take(wide_ * kBlock)),
          slope_out_(scratch.take(wide_ * kBlock)),
          q_(scratch.take(kBlock * wide_)),
          dout_(scratch.take(kBlock * wide_)),
          k_(scratch.take(keys * wide_)),
          v_(scratch.take(keys * wide_)) {}

    PLAB_INLINE void load_keys(const View& k, const View& v, const Place& at, int64_t keys) {
      pack<T, Acc>(k_, k, at, keys, dim_, wide_);
      pack<T, Acc>(v_, v, at, keys, dim_v_, wide_);
    }
    PLAB_INLINE void load_queries(const View& q, const View& dout, const Place& at, int64_t rows,
                                  Acc factor) {
      pack<T, Acc>(q_, q, at, rows, dim_, wide_);
      pack<T, Acc>(dout_, dout, at, rows, dim_v_, wide_);
      transpose<Acc, kBytes, kBlock>(query_, q_, wide_, int(rows), int(wide_), factor);
      transpose<Acc, kBytes, kBlock>(slope_out_, dout_, wide_, int(rows), int(wide_), Acc(1));
    }
    // score = K Qᵀ · factor, slope = V dOᵀ of the block of keys that begins at `first`
    PLAB_INLINE void scores(Acc* score, Acc* slope, int64_t first, int64_t keys) {
      product<Acc, kBytes, false>(score, kBlock, {k_ + first * wide_, wide_, 1}, query_, kBlock, int(keys),
                                  kBlock, int(dim_));
      product<Acc, kBytes, false>(slope, kBlock, {v_ + first * wide_, wide_, 1}, slope_out_, kBlock,
                                  int(keys), kBlock, int(dim_v_));
    }
    // With score = Pᵀ and slope = dSᵀ: dV += Pᵀ dO, dK += dSᵀ Q, dQ += dS K
    PLAB_INLINE void add_gradients(Acc* dq, Acc* dk, Acc* dv, const Acc* score, const Acc* slope,
                                   int64_t first, int64_t keys, int64_t rows) {
      product<Acc, kBytes, true>(dv, wide_, {score, kBlock, 1}, dout_, wide_, int(keys), int(wide_),
                                 int(rows));
      product<Acc, kBytes, true>(dk, wide_, {slope, kBlock, 1}, q_, wide_, int(keys), int(wide_), int(rows));
      product<Acc, kBytes, true>(dq, wide_, {slope, 1, kBlock}, k_ + first * wide_, wide_, int(rows),
                                 int(wide_), int(keys));
    }

   private:
    const int64_t dim_, dim_v_, wide_;
    Acc* const query_;
    Acc* const slope_out_;
    Acc* const q_;
    Acc* const dout_;
    Acc* const k_;
    Acc* const v_;
  };
};

}  // namespace plab::ops::attention::cpu
