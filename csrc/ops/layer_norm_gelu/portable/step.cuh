// SPDX-License-Identifier: Apache-2.0
// Rows taken step by step: short rows, several at a time, and rows of any length that start anywhere.
//
// A step is a piece of memory whose 16-byte vectors are dealt to the threads of a block in order, whatever rows they
// belong to. It is one of two things:
//
//   packed    a number of consecutive rows that begin and end at a multiple of 16 bytes. 5 columns of fp32:
//               rows      |0        |1        |2        |3        |
//               vectors   |0      |1      |2      |3      |4      |     1, 2 and 3 belong to two rows each
//   shifted   one row, with those elements of its neighbours that share its first and its last vector. The next row
//             of the block, or of the cluster whose blocks share the row, lies so many rows further that it starts
//             at the same distance from a multiple of 16 bytes.
//
// So every access is a whole aligned vector, neighbouring threads touch neighbouring addresses, and no lane is idle
// because a row is short. A thread has the same columns in each step: its weights, and in the backward its sums over
// the rows, stay where they are. The sums of a row: each vector's go to shared memory, where one warp adds them up,
// while the other warps finish the step before.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

/// The blocks that work on the same steps: a cluster, or one block.
template <bool kHopper>
struct Team {
  static __device__ __forceinline__ unsigned size() {
    if constexpr (kHopper) return cuda::ptx::cluster_size();
    return 1;
  }
  static __device__ __forceinline__ unsigned rank() {
    if constexpr (kHopper) return cuda::ptx::cluster_rank();
    return 0;
  }
  static __device__ __forceinline__ unsigned index() { return blockIdx.x / size(); }
  static __device__ __forceinline__ unsigned count() { return gridDim.x / size(); }
};

/// A step's rows that are there. The last step of a matrix may have fewer, and end within a vector.
struct Step {
  int rows, elements;
  bool is_last;
};

/// The steps of a team.
class TeamSteps {
 public:
  __device__ TeamSteps(const StepLayout& layout, int64_t all_rows, int64_t team, int64_t teams)
      : layout_(layout),
        first_(layout.interleaved ? team : team * layout.steps_per_team),
        stride_(layout.interleaved ? teams : 1) {
    const int64_t left = (layout.steps - first_ + stride_ - 1) / stride_;
    count_ = static_cast<int>(left < layout.steps_per_team ? left : layout.steps_per_team);
    const int64_t rows_of_last = all_rows - first_row(count_ - 1);
    last_ = rows_of_last <= layout.rows ? count_ - 1 : -1;
    last_rows_ = rows_of_last < layout.rows ? static_cast<int>(rows_of_last) : layout.rows;
  }
  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int64_t first_row(int k) const { return (first_ + k * stride_) * layout_.rows; }
  __device__ __forceinline__ int64_t first_element(int k) const { return first_row(k) * layout_.cols; }
  __device__ __forceinline__ Step at(int k) const {
    const int rows = k == last_ ? last_rows_ : layout_.rows;
    return {rows, rows * layout_.cols, k == last_};
  }

 private:
  const StepLayout& layout_;
  int64_t first_, stride_;
  int count_, last_, last_rows_;
};

/// A thread's vectors of the step. Each belongs to one row or, split, to two. All split vectors of packed rows come
/// after all others, so that few warps have any.
template <class Element_, int kColumns>
class StepTile {
 public:
  using Element = Element_;
  static constexpr int kVecSize = cuda::kVecSize<Element>, kVecs = kColumns / kVecSize;
  using Floats = float[kVecs][kVecSize];

  /// `row`: the team's first, of any matrix. `rank`: of the block in its team.
  __device__ StepTile(const StepLayout& layout, const void* row, unsigned rank)
      : layout_(layout) {
    const int cols = layout.cols;
    if (layout.shifted) {
      const auto shift = static_cast<int>(reinterpret_cast<uint64_t>(row) % cuda::kVecBytes / sizeof(Element));
      offset_ = shift - static_cast<int>(rank) * capacity();
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const int first = static_cast<int>(threadIdx.x + i * blockDim.x) * kVecSize - offset_;
        first_[i] = first < cols ? first : kNone;
        row_[i] = first < 0 ? -1 : 0;
      }
      return;
    }
    offset_ = 0;
    const unsigned bundle_rows = layout.rows_per_bundle, vecs = bundle_rows * cols / kVecSize;
    const unsigned splits = bundle_rows - 1, others = vecs - splits, bundles = layout.rows / bundle_rows;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      unsigned n = threadIdx.x + i * blockDim.x, bundle = n / others, vec = n % others;
      if (bundle < bundles) {
        for (unsigned row = 1; row < bundle_rows; ++row) vec += vec >= row * cols / kVecSize ? 1 : 0;
      } else if (splits > 0) {
        n -= bundles * others;
        bundle = n / splits;
        vec = (n % splits + 1) * cols / kVecSize;
      }
      first_[i] = bundle < bundles ? static_cast<int>((bundle * vecs + vec) * kVecSize) : kNone;
      row_[i] = first_[i] / cols;
    }
  }

  /// Elements that a block has room for.
  static __device__ __forceinline__ int capacity() { return kVecs * kVecSize * static_cast<int>(blockDim.x); }
  /// The first element of vector i, counted from the first of the step's rows; negative in a shifted row's first
  /// vector.
  __device__ __forceinline__ int first(int i) const { return first_[i]; }
  /// What is added to such a number to get an element's place in shared memory.
  __device__ __forceinline__ int offset() const { return offset_; }
  __device__ __forceinline__ int place(int i) const { return first_[i] + offset_; }
  __device__ __forceinline__ int row(int i) const { return row_[i]; }
  /// Elements that a split vector has of its row. The others belong to the next.
  __device__ __forceinline__ int split(int i) const { return (row_[i] + 1) * layout_.cols - first_[i]; }
  __device__ __forceinline__ bool is_split(int i) const { return split(i) < kVecSize; }
  __device__ __forceinline__ bool is_in(const Step& step, int i) const { return first_[i] < step.elements; }

  /// What `vector` has for this thread's columns, zeros if it is null.
  __device__ void load_columns(const void* vector, Floats& f) const {
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
#pragma unroll
      for (int j = 0; j < kVecSize; ++j) {
        const int column = first_[i] - row_[i] * layout_.cols + j;
        f[i][j] = vector == nullptr || first_[i] == kNone
                      ? 0.0f
                      : cuda::to_float(__ldg(static_cast<const Element*>(vector) +
                                             (column < layout_.cols ? column : column - layout_.cols)));
      }
    }
  }

  /// use(from, until, of their row) for the elements of vector i that belong to one of the step's rows.
  template <class Of, class Use>
  __device__ __forceinline__ void with_rows(int i, const Of* of_row, Use&& use) const {
    if (!is_split(i)) {
      use(0, kVecSize, of_row[row_[i]]);
    } else {
      if (row_[i] >= 0) use(0, split(i), of_row[row_[i]]);
      if (row_[i] + 1 < layout_.rows) use(split(i), kVecSize, of_row[row_[i] + 1]);
    }
  }

  /// Writes vector i, as far as it belongs to the step, to a matrix without gaps between its rows. `scratch` is this
  /// thread's, in shared memory.
  __device__ __forceinline__ void store(const Step& step, Element* first_of_step, int i, cuda::Vec<Element> vec,
                                        uint4* scratch) const {
    Element* address = first_of_step + first_[i];
    if (static_cast<unsigned>(first_[i]) <= static_cast<unsigned>(step.elements - kVecSize))
      return cuda::store_streaming(address, vec);
    *scratch = vec.bits;
#pragma unroll 1
    for (int j = 0; j < kVecSize; ++j) {
      if (static_cast<unsigned>(first_[i] + j) < static_cast<unsigned>(step.elements))
        address[j] = reinterpret_cast<const Element*>(scratch)[j];
    }
  }

 private:
  static constexpr int kNone = 1 << 30;  // beyond every step
  const StepLayout& layout_;
  int offset_, first_[kVecs], row_[kVecs];
};

/// A matrix that is read, and what lies between its rows.
struct StepInput {
  const void* first;
  int64_t row_stride;
  int gap;
};

/// Where a step lies in the ring, in bytes.
struct StepSlot {
  unsigned at;
};

/// The next steps of kMatrices matrices, prefetched into shared memory, without the gaps between their rows. On
/// Hopper by bulk copies, which one warp starts; else each thread copies its own vectors.
template <class Tile, int kStages, int kMatrices, bool kHopper>
class StepRing {
 public:
  using Element = typename Tile::Element;
  static constexpr int kAhead = kStages - 1;  // steps
  static constexpr int kBytes = kStages * kMatrices * Tile::kVecs * cuda::kVecBytes;  // per thread
  struct Barriers {
    unsigned long long of_stage[kStages];
  };
  using Inputs = StepInput[kMatrices];

  /// Synchronise the block before the first request.
  __device__ StepRing(const Tile& tile, const StepLayout& layout, void* shared, Barriers& barriers)
      : tile_(tile),
        layout_(layout),
        shared_(static_cast<char*>(shared)),
        matrix_bytes_(Tile::kVecs * cuda::kVecBytes * blockDim.x),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(&barriers))) {
    if constexpr (kHopper) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) cuda::ptx::mbarrier_init(barriers_ + 8 * i, 1);
        cuda::ptx::fence_barrier_init();
      }
    }
  }

  /// Starts the copies of the team's step k, if there is one. A barrier lies between this and the last use of the step
  /// that was kStages before it.
  __device__ __forceinline__ void request(const TeamSteps& steps, unsigned k, const Inputs& inputs) {
    if (static_cast<int>(k) < steps.count()) {
      char* target = shared_ + slot(k).at;
      if constexpr (kHopper) {
        if (threadIdx.x < cuda::kWarpSize) copy_in_bulk(target, steps, k, inputs);
      } else {
        copy_vectors(target, steps, k, inputs);
      }
    }
    if constexpr (!kHopper) cuda::ptx::cp_async_commit_group();
  }
  /// Waits for step k: kNewer steps were requested after it.
  template <int kNewer>
  __device__ __forceinline__ void wait(unsigned k) const {
    if constexpr (kHopper) {
      cuda::ptx::mbarrier_wait(barrier(k), k / kStages % 2);
    } else {
      cuda::ptx::cp_async_wait_group<kNewer>();
    }
  }
  __device__ __forceinline__ StepSlot slot(unsigned k) const { return {k % kStages * (kMatrices * matrix_bytes_)}; }
  /// Where vector i of a step lies.
  __device__ __forceinline__ uint4* at(StepSlot slot, int matrix, int i) const {
    return reinterpret_cast<uint4*>(shared_ + slot.at + matrix * matrix_bytes_ +
                                    tile_.place(i) * static_cast<int>(sizeof(Element)));
  }
  __device__ __forceinline__ cuda::Vec<Element> vec(StepSlot slot, int matrix, int i) const {
    return {*at(slot, matrix, i)};
  }
  __device__ __forceinline__ void put(StepSlot slot, int matrix, int i, cuda::Vec<Element> vec) {
    *at(slot, matrix, i) = vec.bits;
    if constexpr (kHopper) cuda::ptx::fence_proxy_async();  // the next copy comes after this
  }

 private:
  __device__ __forceinline__ uint32_t barrier(unsigned k) const { return barriers_ + 8 * (k % kStages); }
  static __device__ __forceinline__ const Element* first_of_step(const TeamSteps& steps, int k,
                                                                 const StepInput& input) {
    return static_cast<const Element*>(input.first) + steps.first_row(k) * input.row_stride;
  }
  /// What lies behind the last row of a matrix is not read: zeros take its place.
  __device__ void copy_in_bulk(char* target, const TeamSteps& steps, int k, const Inputs& inputs) {
    const Step step = steps.at(k);
    const uint32_t barrier = this->barrier(k);
    const unsigned lane = threadIdx.x;
    const int end = step.elements + tile_.offset(), room = Tile::capacity();
    const int elements = end > room ? room : end > 0 ? end : 0;  // of this block
    const unsigned rest = step.is_last ? elements % Tile::kVecSize : 0;
    const unsigned vecs = (elements - rest + Tile::kVecSize - 1) / Tile::kVecSize, bytes = vecs * cuda::kVecBytes;
    if (lane == 0) {
      if (rest != 0) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m) {
          auto* vec = reinterpret_cast<Element*>(target + m * matrix_bytes_ + bytes);
          const Element* from = first_of_step(steps, k, inputs[m]) + (elements - static_cast<int>(rest)) - tile_.offset();
#pragma unroll 1
          for (unsigned j = 0; j < Tile::kVecSize; ++j) vec[j] = j < rest ? from[j] : Element(0.0f);
        }
      }
      cuda::ptx::mbarrier_arrive_expect_tx(barrier, kMatrices * bytes);
    }
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(target + m * matrix_bytes_));
      const Element* from = first_of_step(steps, k, inputs[m]);
      if (inputs[m].gap == 0 || layout_.shifted) {
        if (lane == 0 && bytes > 0) cuda::ptx::bulk_load(shared, from - tile_.offset(), bytes, barrier);
      } else {
        const unsigned row_bytes = layout_.cols * sizeof(Element);
        for (unsigned row = lane; row < static_cast<unsigned>(step.rows); row += cuda::kWarpSize)
          cuda::ptx::bulk_load(shared + row * row_bytes, from + row * inputs[m].row_stride, row_bytes, barrier);
      }
    }
  }
  __device__ __forceinline__ void copy_vectors(char* target, const TeamSteps& steps, int k, const Inputs& inputs) {
    const Step step = steps.at(k);
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if (!tile_.is_in(step, i)) continue;
      const int first = tile_.first(i), left = step.elements - first;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        char* shared = target + m * matrix_bytes_ + tile_.place(i) * static_cast<int>(sizeof(Element));
        const Element* vec = first_of_step(steps, k, inputs[m]) + (first + cuda::larger(tile_.row(i), 0) * inputs[m].gap);
        if (!step.is_last || left >= Tile::kVecSize) {
          cuda::ptx::cp_async_cg(shared, vec);
        } else {
          cuda::ptx::cp_async_cg_part(shared, vec, left * static_cast<int>(sizeof(Element)));
        }
      }
    }
  }

  const Tile& tile_;
  const StepLayout& layout_;
  char* shared_;
  unsigned matrix_bytes_;
  uint32_t barriers_;
};

}  // namespace plab::ops::layer_norm_gelu
