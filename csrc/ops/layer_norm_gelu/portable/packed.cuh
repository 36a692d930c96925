// SPDX-License-Identifier: Apache-2.0
// Rows packed into steps: how a block shares rows of few columns, and rows that do not start at 16 bytes.
//
// A step is a number of consecutive rows that begins and ends at a multiple of 16 bytes. Its 16-byte vectors are
// dealt to the threads of a block in order, whatever rows they belong to:
//
//   5 columns of fp32, a step of 4 rows
//     rows      |0        |1        |2        |3        |
//     vectors   |0      |1      |2      |3      |4      |     vectors 1, 2 and 3 belong to two rows each
//
// So every access is a whole aligned vector and neighbouring threads touch neighbouring addresses, for any number
// of columns. A thread has the same columns in each step: its weights, and in the backward its sums over the rows,
// stay where they are. The sums of a row: each vector's go to shared memory, and a few threads add them up.
#pragma once

#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

/// A thread's vectors of the step. Each belongs to one row or, split, to two. All split ones come after all others,
/// so that few warps have any.
template <class Element_, int kColumns>
class PackedTile {
 public:
  using Element = Element_;
  static constexpr int kVecSize = cuda::kVecSize<Element>, kVecs = kColumns / kVecSize;
  using Floats = float[kVecs][kVecSize];

  __device__ explicit PackedTile(const Packing& packing) : cols_(packing.cols) {
    const unsigned rows = packing.rows_per_bundle, vecs = rows * cols_ / kVecSize;
    const unsigned splits = rows - 1, others = vecs - splits, bundles = packing.rows / rows;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      unsigned n = threadIdx.x + i * blockDim.x, bundle = n / others, vec = n % others;
      if (bundle < bundles) {
        for (unsigned row = 1; row < rows; ++row) vec += vec >= row * cols_ / kVecSize ? 1 : 0;
      } else if (splits > 0) {
        n -= bundles * others;
        bundle = n / splits;
        vec = (n % splits + 1) * cols_ / kVecSize;
      }
      first_[i] = bundle < bundles ? (bundle * vecs + vec) * kVecSize : kNone;
      row_[i] = first_[i] / cols_;
    }
  }
  /// The first element of vector i, counted from the step's first, and the row it belongs to.
  __device__ __forceinline__ unsigned first(int i) const { return first_[i]; }
  __device__ __forceinline__ unsigned row(int i) const { return row_[i]; }
  /// Elements that a split vector has of that row. The others belong to the next row.
  __device__ __forceinline__ int split(int i) const {
    return static_cast<int>((row_[i] + 1) * cols_ - first_[i]);
  }
  __device__ __forceinline__ bool is_split(int i) const { return split(i) < kVecSize; }

  /// What `vector` has for this thread's columns, zeros if it is null.
  __device__ void load_columns(const void* vector, Floats& f) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        const unsigned column = first_[i] - row_[i] * cols_ + j;
        f[i][j] = vector == nullptr || first_[i] == kNone
                      ? 0.0f
                      : cuda::to_float(__ldg(static_cast<const Element*>(vector) +
                                             (column < cols_ ? column : column - cols_)));
      }
    }
  }

  /// use(j, of its row) for all elements of vector i.
  template <class Of, class Use>
  __device__ __forceinline__ void with_rows(int i, const Of* of_row, Use&& use) const {
    const Of first = of_row[row_[i]];
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) use(j, first);
    if (!is_split(i)) return;
    const Of next = of_row[row_[i] + 1];
#pragma unroll
    for (int j = 0; j < kVecSize; ++j) {
      if (j >= split(i)) use(j, next);
    }
  }

 private:
  static constexpr unsigned kNone = 1u << 30;  // beyond every step
  unsigned cols_, first_[kVecs], row_[kVecs];
};

/// The rows of a step that are there: the last step may have fewer, and end within a vector.
struct PackedStep {
  int rows;
  unsigned elements;
  bool whole;

  template <class Tile>
  __device__ __forceinline__ bool has(const Tile& tile, int i) const {
    return tile.first(i) < elements;
  }
};

/// The steps of a block.
class PackedSteps {
 public:
  __device__ PackedSteps(const Packing& packing, int64_t all_rows)
      : rows_(packing.rows),
        elements_(packing.rows * packing.cols),
        first_(packing.interleaved ? blockIdx.x : blockIdx.x * packing.steps_per_block),
        stride_(packing.interleaved ? gridDim.x : 1) {
    const int64_t left = (packing.steps - first_ + stride_ - 1) / stride_;
    count_ = static_cast<int>(left < packing.steps_per_block ? left : packing.steps_per_block);
    const int64_t rows_of_last = all_rows - (first_ + (count_ - 1) * stride_) * packing.rows;
    const bool is_partial = rows_of_last < packing.rows;
    partial_ = is_partial ? count_ - 1 : -1;
    partial_rows_ = is_partial ? static_cast<int>(rows_of_last) : packing.rows;
    partial_elements_ = partial_rows_ * packing.cols;
  }
  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int64_t first_row() const { return first_ * rows_; }
  /// From a step to the block's next.
  __device__ __forceinline__ int64_t row_stride() const { return stride_ * rows_; }
  __device__ __forceinline__ PackedStep whole() const { return {rows_, elements_, true}; }
  __device__ __forceinline__ PackedStep at(int k) const {
    return k == partial_ ? PackedStep{partial_rows_, partial_elements_, false} : whole();
  }

 private:
  int rows_;
  unsigned elements_;
  int64_t first_, stride_;
  int count_, partial_, partial_rows_;
  unsigned partial_elements_;
};

/// A matrix that the block reads step by step.
template <class Tile>
class PackedInput {
 public:
  using Element = typename Tile::Element;

  PackedInput() = default;
  __device__ PackedInput(const PackedSteps& steps, const void* matrix, int64_t row_stride, int64_t cols)
      : step_(static_cast<const Element*>(matrix) + steps.first_row() * row_stride),
        distance_(steps.row_stride() * row_stride),
        gap_(static_cast<unsigned>(row_stride - cols)) {}
  __device__ __forceinline__ bool has_gaps() const { return gap_ != 0; }
  /// From the step's first element on, counted without the gaps.
  __device__ __forceinline__ const Element* at(unsigned element, unsigned row) const {
    return step_ + (element + row * gap_);
  }
  __device__ __forceinline__ void advance() { step_ += distance_; }

 private:
  const Element* step_;
  int64_t distance_;  // from a step to the block's next
  unsigned gap_;      // between rows
};

/// The same of a matrix that it writes; there are no gaps between the rows.
template <class Tile>
class PackedOutput {
 public:
  using Element = typename Tile::Element;

  __device__ PackedOutput(const PackedSteps& steps, void* matrix, int64_t cols)
      : step_(static_cast<Element*>(matrix) + steps.first_row() * cols), distance_(steps.row_stride() * cols) {}
  /// Vector i, as far as it is there; `scratch` is this thread's, in shared memory.
  __device__ __forceinline__ void store(const Tile& tile, const PackedStep& step, int i,
                                        cuda::Vec<Element> vec, uint4* scratch) const {
    Element* address = step_ + tile.first(i);
    if (step.whole || tile.first(i) + Tile::kVecSize <= step.elements)
      return cuda::store_streaming(address, vec);
    *scratch = vec.bits;
#pragma unroll 1
    for (int j = 0; j < tile.split(i); ++j) address[j] = reinterpret_cast<const Element*>(scratch)[j];
  }
  __device__ __forceinline__ void advance() { step_ += distance_; }

 private:
  Element* step_;
  int64_t distance_;
};

/// The next steps of kMatrices matrices, prefetched into shared memory, without the gaps between their rows.
/// kBulk: by bulk copies, which one warp starts. Else each thread copies its own vectors.
template <class Tile, int kStages, int kMatrices, bool kBulk>
class PackedRing {
 public:
  using Element = typename Tile::Element;
  static constexpr int kAhead = kStages - 1;  // steps
  static constexpr int kBytes = kStages * kMatrices * Tile::kVecs * cuda::kVecBytes;  // per thread
  struct Barriers {
    unsigned long long of_stage[kStages];
  };
  using Inputs = PackedInput<Tile>[kMatrices];

  /// Synchronise the block before the first request.
  __device__ PackedRing(const Tile& tile, const Packing& packing, void* shared, Barriers& barriers)
      : tile_(tile),
        cols_(packing.cols),
        shared_(static_cast<char*>(shared)),
        matrix_bytes_(Tile::kVecs * cuda::kVecBytes * blockDim.x),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(&barriers))) {
    if constexpr (kBulk) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) cuda::ptx::mbarrier_init(barriers_ + 8 * i, 1);
        cuda::ptx::fence_barrier_init();
      }
    }
  }

  /// Starts the copies of the next step, if there is one. A barrier lies between this and the last use of the step
  /// that was kStages before it.
  __device__ __forceinline__ void request(bool exists, const PackedStep& step, Inputs& inputs) {
    if (exists) {
      char* target = shared_ + ahead_ * kMatrices * matrix_bytes_;
      if constexpr (kBulk) {
        if (threadIdx.x < cuda::kWarpSize) copy_in_bulk(target, step, inputs);
      } else {
        copy_vectors(target, step, inputs);
      }
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) inputs[m].advance();
    }
    if constexpr (!kBulk) cuda::ptx::cp_async_commit_group();
    ahead_ = ahead_ + 1 == kStages ? 0 : ahead_ + 1;
  }
  /// Waits for this step.
  __device__ __forceinline__ void wait() {
    if constexpr (kBulk) {
      cuda::ptx::mbarrier_wait(barriers_ + 8 * now_, parity_);
    } else {
      cuda::ptx::cp_async_wait_group<kAhead - 1>();
    }
  }
  /// Where vector i of this step lies.
  __device__ __forceinline__ uint4* at(int matrix, int i) const {
    return reinterpret_cast<uint4*>(shared_ + (now_ * kMatrices + matrix) * matrix_bytes_ +
                                    tile_.first(i) * sizeof(Element));
  }
  __device__ __forceinline__ cuda::Vec<Element> vec(int matrix, int i) const { return {*at(matrix, i)}; }
  __device__ __forceinline__ void put(int matrix, int i, cuda::Vec<Element> vec) {
    *at(matrix, i) = vec.bits;
    if constexpr (kBulk) cuda::ptx::fence_proxy_async();  // the next copy comes after this
  }
  __device__ __forceinline__ void advance() {
    now_ = now_ + 1 == kStages ? 0 : now_ + 1;
    if (now_ == 0) parity_ ^= 1;
  }

 private:
  __device__ void copy_in_bulk(char* target, const PackedStep& step, const Inputs& inputs) {
    constexpr unsigned kRest = cuda::kVecBytes - 1;
    const uint32_t barrier = barriers_ + 8 * ahead_;
    const unsigned lane = threadIdx.x, bytes = step.elements * sizeof(Element), whole_vecs = bytes & ~kRest;
    if (lane == 0) {
      if (bytes != whole_vecs) {  // a last vector that is not all there: zeros beyond its end
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          auto* vec = reinterpret_cast<Element*>(target + m * matrix_bytes_ + whole_vecs);
          const unsigned first = whole_vecs / sizeof(Element);
#pragma unroll 1
          for (unsigned j = 0; j < Tile::kVecSize; ++j)
            vec[j] = first + j < step.elements ? inputs[m].at(first, 0)[j] : Element(0.0f);
        }
      }
      cuda::ptx::mbarrier_arrive_expect_tx(barrier, kMatrices * whole_vecs);
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(target + m * matrix_bytes_));
      if (!inputs[m].has_gaps()) {
        if (lane == 0 && whole_vecs > 0) cuda::ptx::bulk_load(shared, inputs[m].at(0, 0), whole_vecs, barrier);
      } else {
        const unsigned row_bytes = cols_ * sizeof(Element);
        for (unsigned row = lane; row < static_cast<unsigned>(step.rows); row += cuda::kWarpSize)
          cuda::ptx::bulk_load(shared + row * row_bytes, inputs[m].at(row * cols_, row), row_bytes, barrier);
      }
    }
  }
  __device__ __forceinline__ void copy_vectors(char* target, const PackedStep& step, const Inputs& inputs) {
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if (!step.has(tile_, i)) continue;
      const unsigned first = tile_.first(i), left = step.elements - first;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        char* shared = target + m * matrix_bytes_ + first * sizeof(Element);
        const Element* vec = inputs[m].at(first, tile_.row(i));
        if (left >= Tile::kVecSize) {
          cuda::ptx::cp_async_cg(shared, vec);
        } else {
          cuda::ptx::cp_async_cg_part(shared, vec, left * sizeof(Element));
        }
      }
    }
  }

  const Tile& tile_;
  unsigned cols_;
  char* shared_;
  unsigned matrix_bytes_;
  uint32_t barriers_;
  unsigned ahead_ = 0, now_ = 0, parity_ = 0;
};

/// Two sums for each row of a step.
template <class Tile>
class PackedSums {
 public:
  /// Per thread. A step has at most as many rows as a block has threads.
  static constexpr int kBytes = (Tile::kVecs + 1) * static_cast<int>(sizeof(float2));

  __device__ PackedSums(const Tile& tile, const Packing& packing, void* shared)
      : tile_(tile),
        lanes_log2_(packing.lanes_per_row_log2),
        cols_(packing.cols),
        of_vec_(static_cast<float2*>(shared)),
        of_head_(of_vec_ + Tile::kVecs * blockDim.x) {}

  /// Hands in what vector i has for its rows: pair(j) of each element.
  template <class Pair>
  __device__ __forceinline__ void post(int i, Pair&& pair) {
    float2 sum{0.0f, 0.0f};
    if (!tile_.is_split(i)) {
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        const float2 p = pair(j);
        sum.x += p.x, sum.y += p.y;
      }
    } else {
      float2 next{0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        const float2 p = pair(j);
        if (j < tile_.split(i)) {
          sum.x += p.x, sum.y += p.y;
        } else {
          next.x += p.x, next.y += p.y;
        }
      }
      of_head_[tile_.row(i) + 1] = next;
    }
    of_vec_[tile_.first(i) / Tile::kVecSize] = sum;
  }

  /// use(row, a, b) in one thread for each of the step's first `rows` rows, with the sums of what was posted
  /// before the last barrier. The order of the additions depends on the number of columns alone.
  template <class Use>
  __device__ __forceinline__ void each_row(int rows, Use&& use) const {
    const int lanes = 1 << lanes_log2_, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    const int at_a_time = static_cast<int>(blockDim.x) >> lanes_log2_;
    const int of_warp = static_cast<int>(threadIdx.x / 32) << (5 - lanes_log2_);
    for (int first = of_warp; first < rows; first += at_a_time) {  // all lanes of a warp alike
      const int row = first + (static_cast<int>(threadIdx.x % 32) >> lanes_log2_);
      float a = 0.0f, b = 0.0f;
      if (row < rows) {
        const int begin = row * cols_, first = (begin + Tile::kVecSize - 1) / Tile::kVecSize;
        const int last = (begin + cols_ - 1) / Tile::kVecSize;
        if (lane == 0 && begin % Tile::kVecSize != 0) a = of_head_[row].x, b = of_head_[row].y;
#pragma unroll 4
        for (int vec = first + lane; vec <= last; vec += lanes) {
          const float2 part = of_vec_[vec];
          a += part.x, b += part.y;
        }
      }
      for (int offset = lanes / 2; offset > 0; offset /= 2) {
        a += __shfl_xor_sync(cuda::kAllLanes, a, offset);
        b += __shfl_xor_sync(cuda::kAllLanes, b, offset);
      }
      if (row < rows && lane == 0) use(row, a, b);
    }
  }

 private:
  const Tile& tile_;
  int lanes_log2_, cols_;
  float2 *of_vec_, *of_head_;  // of_head_: of the vector that a row shares with the row before it
};

}  // namespace plab::ops::layer_norm_gelu
