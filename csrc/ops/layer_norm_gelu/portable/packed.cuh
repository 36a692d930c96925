// SPDX-License-Identifier: Apache-2.0
// Rows packed into steps: how a block shares rows of few columns, and rows that do not start at 16 bytes.
//
// A step is a number of consecutive rows that begins and ends at a multiple of 16 bytes. Its 16-byte vectors are
// dealt to the threads of a block in order, whatever rows they belong to:
//
//   10 columns of bf16, a step of 4 rows
//     rows      |0        |1        |2        |3        |
//     vectors   |0      |1      |2      |3      |4      |     1, 2 and 3 are split: they belong to two rows each
//
// So every access is a whole aligned vector, neighbouring threads touch neighbouring addresses, and no lane is idle
// because a row is short. A thread has the same columns in each step, and so keeps its sums over the rows in
// registers. The sums of a row: each vector's go to shared memory, where a few threads add them up.
#pragma once

#include "cuda/launch.h"
#include "cuda/ptx/bulk.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"

namespace plab::ops::layer_norm_gelu {

/// A step's rows that are there: the last one of a matrix may have fewer, and end within a vector.
struct PackedStep {
  int rows, elements;
};

/// The steps of a block: every gridDim.x-th.
class PackedSteps {
 public:
  __device__ PackedSteps(const Packing& packing, int64_t all_rows) : packing_(packing) {
    count_ = static_cast<int>((packing.steps - blockIdx.x + gridDim.x - 1) / gridDim.x);
    const int64_t rows_of_last = all_rows - first_row(count_ - 1);
    last_rows_ = rows_of_last < packing.rows ? static_cast<int>(rows_of_last) : packing.rows;
  }
  __device__ __forceinline__ int count() const { return count_; }
  __device__ __forceinline__ int64_t first_row(int k) const {
    return (blockIdx.x + int64_t{k} * gridDim.x) * packing_.rows;
  }
  __device__ __forceinline__ int64_t first_element(int k) const { return first_row(k) * packing_.cols; }
  __device__ __forceinline__ PackedStep at(int k) const {
    const int rows = k == count_ - 1 ? last_rows_ : packing_.rows;
    return {rows, rows * packing_.cols};
  }

 private:
  const Packing& packing_;
  int count_, last_rows_;
};

/// A thread's vectors of the step. All split ones come after all others, so that few warps have any. A thread that
/// has fewer vectors than others uses places behind the step's end, where zeros lie.
template <class Element_, int kColumns, bool kSplit_>
class PackedTile {
 public:
  using Element = Element_;
  static constexpr bool kSplit = kSplit_;  // some vectors are
  static constexpr int kVecSize = cuda::kVecSize<Element>, kVecs = kColumns / kVecSize;
  using Floats = float[kVecs][kVecSize];

  __device__ explicit PackedTile(const Packing& packing) : packing_(packing) {
    const int bundle_rows = packing.rows_per_bundle, cols = packing.cols, vecs = packing.vecs_per_bundle;
    const int splits = bundle_rows - 1, others = vecs - splits, bundles = packing.rows / bundle_rows;
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int n = static_cast<int>(threadIdx.x + i * blockDim.x);
      int bundle = n / others, vec = n % others;
      if (bundle < bundles) {
        for (int row = 1; row < bundle_rows; ++row) vec += vec >= row * cols / kVecSize ? 1 : 0;
      } else if (splits > 0) {
        bundle = (n - bundles * others) / splits;
        vec = ((n - bundles * others) % splits + 1) * cols / kVecSize;
      }
      const bool idle = bundle >= bundles;
      in_bundle_[i] = idle ? 0 : vec;
      first_[i] = (idle ? n : bundle * vecs + vec) * kVecSize;
      row_[i] = idle ? 0 : first_[i] / cols;
    }
  }
  /// Elements that a block has room for.
  static __device__ __forceinline__ int capacity() { return kVecs * kVecSize * static_cast<int>(blockDim.x); }
  /// The first element of vector i, counted from the step's first, and the row it belongs to.
  __device__ __forceinline__ int first(int i) const { return first_[i]; }
  __device__ __forceinline__ int row(int i) const { return row_[i]; }
  /// The index of vector i in its bundle: those of the same index have the same columns.
  __device__ __forceinline__ int in_bundle(int i) const { return in_bundle_[i]; }
  /// Elements that a split vector has of its row. The others belong to the next.
  __device__ __forceinline__ int split(int i) const { return (row_[i] + 1) * packing_.cols - first_[i]; }
  /// Unsigned: not where it is negative, in a vector behind the step.
  __device__ __forceinline__ bool is_split(int i) const {
    return kSplit && static_cast<unsigned>(split(i)) < static_cast<unsigned>(kVecSize);
  }

  /// use(of): of(j) is what element j of vector i needs of its row, of.kIsOne that all elements have the same.
  template <class Of, class Use>
  __device__ __forceinline__ void with_rows(int i, const Of* of_row, Use&& use) const {
    if (!is_split(i)) {
      use(OfOneRow<Of>{of_row[row_[i]]});
    } else {
      use(OfTwoRows<Of>{of_row[row_[i]], of_row[row_[i] + 1], split(i)});
    }
  }

  /// Writes vector i, as far as it is there.
  __device__ __forceinline__ void store(const PackedStep& step, Element* first_of_step, int i,
                                        cuda::Vec<Element> vec) const {
    Element* address = first_of_step + first_[i];
    if (first_[i] + kVecSize <= step.elements) return cuda::store_streaming(address, vec);
    if constexpr (kSplit) {
#pragma unroll 1
      for (int j = 0; j < step.elements - first_[i]; ++j, cuda::drop_first(vec))
        address[j] = cuda::first(vec);
    }
  }

 private:
  template <class Of>
  struct OfOneRow {
    static constexpr bool kIsOne = true;
    Of row;
    __device__ __forceinline__ const Of& operator()(int) const { return row; }
  };
  template <class Of>
  struct OfTwoRows {
    static constexpr bool kIsOne = false;
    Of row, next;
    int split;
    __device__ __forceinline__ const Of& operator()(int j) const { return j < split ? row : next; }
  };

  const Packing& packing_;
  int first_[kVecs], row_[kVecs], in_bundle_[kVecs];
};

/// Weight and bias of a bundle's vectors in shared memory, as `Stored`: in 16-byte quads, quad by quad, vector by
/// vector, so that neighbouring lanes read neighbouring quads.
template <class Tile, class Stored>
class PackedWeights {
 public:
  using Floats = float[Tile::kVecSize];
  static constexpr int kOfQuad = cuda::kVecSize<Stored>, kQuads = Tile::kVecSize / kOfQuad;
  static int bytes(const Packing& packing) {
    return 2 * kQuads * packing.vecs_per_bundle * static_cast<int>(sizeof(uint4));
  }

  /// `bias` may be null. Synchronise the block before the first get().
  __device__ PackedWeights(const Packing& packing, void* shared, const void* weight, const void* bias,
                           float scale)
      : shared_(static_cast<uint4*>(shared)), distance_(packing.vecs_per_bundle) {
    using Element = typename Tile::Element;
    auto* stored = static_cast<Stored*>(shared);
    const auto scaled = [&](const void* of, int column) {
      return cuda::from_float<Stored>(cuda::to_float(__ldg(static_cast<const Element*>(of) + column)) *
                                      scale);
    };
    for (int n = static_cast<int>(threadIdx.x); n < distance_ * Tile::kVecSize;
         n += static_cast<int>(blockDim.x)) {
      const int vec = n / Tile::kVecSize, j = n % Tile::kVecSize, column = n % packing.cols;
      const int at = (j / kOfQuad * distance_ + vec) * kOfQuad + j % kOfQuad;
      stored[at] = scaled(weight, column);
      stored[at + kOfQuad * kQuads * distance_] =
          bias == nullptr ? cuda::from_float<Stored>(0.0f) : scaled(bias, column);
    }
  }
  __device__ __forceinline__ void get(const Tile& tile, int i, Floats& weight, Floats& bias) const {
#pragma unroll
    for (int q = 0; q < 2 * kQuads; ++q) {
      float f[kOfQuad];
      cuda::unpack(cuda::Vec<Stored>{shared_[q * distance_ + tile.in_bundle(i)]}, f);
#pragma unroll
      for (int j = 0; j < kOfQuad; ++j) (q < kQuads ? weight : bias)[q % kQuads * kOfQuad + j] = f[j];
    }
  }

 private:
  const uint4* shared_;
  int distance_;
};

/// The next steps of kMatrices matrices, prefetched into shared memory. On Hopper by bulk copies, which one warp
/// starts; else each thread copies its own vectors.
template <class Tile, int kStages, int kMatrices, bool kBulk>
class PackedRing {
 public:
  using Element = typename Tile::Element;
  static constexpr int kAhead = kStages - 1;                                          // steps
  static constexpr int kBytes = kStages * kMatrices * Tile::kVecs * cuda::kVecBytes;  // per thread
  struct Barriers {
    unsigned long long of_stage[kStages];
  };
  using Inputs = const void* [kMatrices];

  /// Synchronise the block before the first request.
  __device__ PackedRing(const Tile& tile, const Packing& packing, void* shared, Barriers& barriers)
      : tile_(tile),
        packing_(packing),
        shared_(static_cast<char*>(shared)),
        matrix_bytes_(Tile::capacity() * static_cast<int>(sizeof(Element))),
        barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(&barriers))) {
    if constexpr (kBulk) {
      if (threadIdx.x == 0) {
        for (int i = 0; i < kStages; ++i) cuda::ptx::mbarrier_init(barriers_ + 8 * i, 1);
        cuda::ptx::fence_barrier_init();
      }
    }
    for (int part = 0; part < kStages * kMatrices; ++part)
      zero(shared_ + part * matrix_bytes_, packing.rows * packing.cols);
  }

  /// Starts the copies of the block's next step, k, if there is one. A barrier lies between this and the last use of
  /// the step that was kStages before it.
  __device__ __forceinline__ void request(const PackedSteps& steps, int k, const Inputs& inputs) {
    if (k < steps.count()) {
      char* target = shared_ + ahead_ * kMatrices * matrix_bytes_;
      if constexpr (kBulk) {
        if (threadIdx.x < cuda::kWarpSize) copy_in_bulk(target, steps, k, inputs);
      } else {
        copy_vectors(target, steps, k, inputs);
      }
    }
    if constexpr (!kBulk) cuda::ptx::cp_async_commit_group();
    ahead_ = ahead_ + 1 == kStages ? 0 : ahead_ + 1;
  }
  /// Waits for the next step.
  __device__ __forceinline__ void wait() const {
    if constexpr (kBulk) {
      cuda::ptx::mbarrier_wait(barriers_ + 8 * now_, parity_);
    } else {
      cuda::ptx::cp_async_wait_group<kAhead - 1>();
    }
  }
  /// Where vector i of this step lies.
  __device__ __forceinline__ uint4* at(int matrix, int i) const {
    return reinterpret_cast<uint4*>(shared_ + (now_ * kMatrices + matrix) * matrix_bytes_ +
                                    tile_.first(i) * static_cast<int>(sizeof(Element)));
  }
  __device__ __forceinline__ cuda::Vec<Element> vec(int matrix, int i) const { return {*at(matrix, i)}; }
  __device__ __forceinline__ void advance() {
    now_ = now_ + 1 == kStages ? 0 : now_ + 1;
    if (now_ == 0) parity_ ^= 1;
  }

 private:
  /// Zeros from an element on: what is there is not the matrix's.
  __device__ void zero(char* matrix, int first) const {
    auto* elements = reinterpret_cast<Element*>(matrix);
    for (int n = first + static_cast<int>(threadIdx.x); n < Tile::capacity();
         n += static_cast<int>(blockDim.x))
      elements[n] = cuda::from_float<Element>(0.0f);
  }
  static __device__ __forceinline__ const Element* first_of_step(const PackedSteps& steps, int k,
                                                                 const void* matrix) {
    return static_cast<const Element*>(matrix) + steps.first_element(k);
  }
  __device__ void copy_in_bulk(char* target, const PackedSteps& steps, int k, const Inputs& inputs) {
    const PackedStep step = steps.at(k);
    const uint32_t barrier = barriers_ + 8 * ahead_;
    const int lane = static_cast<int>(threadIdx.x), rest = step.elements % Tile::kVecSize;
    const unsigned bytes = static_cast<unsigned>(step.elements - rest) * sizeof(Element);
    if (step.rows < packing_.rows) {  // the last step: zeros beyond it, and by hand what is no whole vector
#pragma unroll 1
      for (int n = step.elements - rest + lane; n < packing_.rows * packing_.cols; n += cuda::kWarpSize) {
#pragma unroll
        for (int m = 0; m < kMatrices; ++m)
          reinterpret_cast<Element*>(target + m * matrix_bytes_)[n] =
              n < step.elements ? first_of_step(steps, k, inputs[m])[n] : cuda::from_float<Element>(0.0f);
      }
    }
    __syncwarp();
    if (lane == 0) cuda::ptx::mbarrier_arrive_expect_tx(barrier, kMatrices * bytes);
    __syncwarp();
    if (lane != 0 || bytes == 0) return;
#pragma unroll
    for (int m = 0; m < kMatrices; ++m) {
      const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(target + m * matrix_bytes_));
      cuda::ptx::bulk_load(shared, first_of_step(steps, k, inputs[m]), bytes, barrier);
    }
  }
  __device__ __forceinline__ void copy_vectors(char* target, const PackedSteps& steps, int k,
                                               const Inputs& inputs) {
    const PackedStep step = steps.at(k);
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      const int first = tile_.first(i), left = step.elements - first;
      if (first >= packing_.rows * packing_.cols) continue;
#pragma unroll
      for (int m = 0; m < kMatrices; ++m) {
        char* shared = target + m * matrix_bytes_ + first * static_cast<int>(sizeof(Element));
        const Element* vec = first_of_step(steps, k, inputs[m]) + first;
        if (left >= Tile::kVecSize) {
          cuda::ptx::cp_async_cg(shared, vec);
        } else {  // zeros beyond the matrix; where there is nothing, its first vector serves as address
          const Element* some = left > 0 ? vec : static_cast<const Element*>(inputs[m]);
          cuda::ptx::cp_async_cg_part(shared, some,
                                      cuda::larger(left, 0) * static_cast<int>(sizeof(Element)));
        }
      }
    }
  }

  const Tile& tile_;
  const Packing& packing_;
  char* shared_;
  int matrix_bytes_;
  uint32_t barriers_;
  unsigned ahead_ = 0, now_ = 0, parity_ = 0;
};

/// What the vectors have for the sums of their rows.
template <class Tile, class Part>
class PackedSums {
 public:
  /// Per thread. A step has at most as many rows as a block has threads.
  static constexpr int kBytes = (Tile::kVecs + (Tile::kSplit ? 1 : 0)) * static_cast<int>(sizeof(Part));

  __device__ PackedSums(const Tile& tile, const Packing& packing, void* shared)
      : tile_(tile), packing_(packing), of_vec_(static_cast<Part*>(shared)) {}

  /// Hands in part(from, until, row) of vector i: of its elements of one row.
  template <class Make>
  __device__ __forceinline__ void post(int i, Make&& part) {
    const int vec = tile_.first(i) / Tile::kVecSize;
    if (!tile_.is_split(i)) {
      of_vec_[vec] = part(0, Tile::kVecSize, tile_.row(i));
    } else {
      of_vec_[vec] = part(0, tile_.split(i), tile_.row(i));
      of_head()[tile_.row(i) + 1] = part(tile_.split(i), Tile::kVecSize, tile_.row(i) + 1);
    }
  }

  /// add_up(row, leads, each) in all lanes of a warp, for each of the step's first `rows` rows. each(use) is
  /// use(part, its number of elements) for those parts of the row that are this lane's; row < 0: the lane has none.
  /// One lane of a row leads.
  template <class AddUp>
  __device__ __forceinline__ void each_row(int rows, AddUp&& add_up) const {
    constexpr int kVecSize = Tile::kVecSize;
    const int lane = static_cast<int>(threadIdx.x) & (lanes() - 1);
    const int of_warp = static_cast<int>(threadIdx.x & ~31u) >> packing_.lanes_per_row_log2;
    for (int first_row = of_warp; first_row < rows;
         first_row += static_cast<int>(blockDim.x) >> packing_.lanes_per_row_log2) {
      const int row = first_row + (static_cast<int>(threadIdx.x % 32) >> packing_.lanes_per_row_log2);
      add_up(row < rows ? row : -1, lane == 0, [&](auto&& use) {
        if (row >= rows) return;
        const int begin = row * packing_.cols, end = begin + packing_.cols;
        const int first = kSplit ? (begin + kVecSize - 1) / kVecSize : begin / kVecSize,
                  whole = end / kVecSize;
        if constexpr (kSplit) {
          const int ahead = first * kVecSize - begin;
          if (ahead > 0 && lane == 0) use(of_head()[row], ahead);
        }
#pragma unroll 4
        for (int vec = first + lane; vec < whole; vec += lanes()) use(of_vec_[vec], kVecSize);
        if constexpr (kSplit) {
          const int behind = end - whole * kVecSize;
          if (behind > 0 && lane == lanes() - 1) use(of_vec_[whole], behind);
        }
      });
    }
  }
  /// Over the lanes of a row.
  __device__ __forceinline__ void add(float& a, float& b) const {
    for (int offset = lanes() / 2; offset > 0; offset /= 2) {
      a += __shfl_xor_sync(cuda::kAllLanes, a, offset);
      b += __shfl_xor_sync(cuda::kAllLanes, b, offset);
    }
  }

 private:
  static constexpr bool kSplit = Tile::kSplit;
  __device__ __forceinline__ int lanes() const { return 1 << packing_.lanes_per_row_log2; }
  /// Of each row's first elements, if it begins within a vector.
  __device__ __forceinline__ Part* of_head() const { return of_vec_ + Tile::kVecs * blockDim.x; }

  const Tile& tile_;
  const Packing& packing_;
  Part* of_vec_;
};

}  // namespace plab::ops::layer_norm_gelu
