// SPDX-License-Identifier: Apache-2.0
// Rung 2, tiled: the same three kernels, but both products go through tiles in shared memory.
//
// Mapping   a block of 16 x 16 threads owns a 64 x 64 tile of a product and walks its depth in steps of 32; a
//           thread owns 4 x 4 results in registers.
// Bytes     an element that a block loads is used 64 times from shared memory. An element that a thread reads
//           from there is used 4 times from a register. The score matrix still makes its trips: 24 bytes a score.
// Flops     4 rows keys head_dim a head.
// Roof      memory: at head_dim 64 a score costs 256 flops and 24 bytes, and 4.3 TB/s carry 180e9 scores a
//           second, 46 TFLOP/s, before anything else. Longer sequences do not help: flops and bytes grow alike.
// Contract  ladder_attention.h; scratch for all scores.
#include "ops/ladder_attention/device.cuh"

namespace plab::ops::ladder {
namespace {

constexpr int kTile = 64, kDepth = 32, kPerThread = 4;
static_assert(kTile * kTile == kThreads * kPerThread * kPerThread);

/// Depth first: [depth][row], so that a thread's four rows are adjacent. The padding keeps 16-byte alignment
/// and moves neighbouring depths to different banks.
using Operand = float[kDepth][kTile + 4];

/// The block fills an operand with get(row, depth). Neighbouring threads read neighbouring addresses: along the
/// depth if the source is contiguous along it, else along the rows.
template <bool kDepthIsDense, class Get>
__device__ __forceinline__ void load(Operand& operand, const Get& get) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDepth; i += kThreads) {
    const int row = kDepthIsDense ? i / kDepth : i % kTile, depth = kDepthIsDense ? i % kDepth : i / kTile;
    operand[depth][row] = get(row, depth);
  }
}

/// A block's tile of a product: load_step(a, b, first) fetches both operands for depths [first, first +
/// kDepth).
template <class LoadStep>
__device__ __forceinline__ void multiply(float (&sum)[kPerThread][kPerThread], int64_t depth,
                                         const LoadStep& load_step) {
  __shared__ Operand a, b;
  const int row = static_cast<int>(threadIdx.x) / 16 * kPerThread;
  const int column = static_cast<int>(threadIdx.x) % 16 * kPerThread;
  for (int64_t first = 0; first < depth; first += kDepth) {
    load_step(a, b, first);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&a[k][row]);
      const float4 y = *reinterpret_cast<const float4*>(&b[k][column]);
      const float left[] = {x.x, x.y, x.z, x.w}, right[] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) sum[i][j] = fmaf(left[i], right[j], sum[i][j]);
    }
    __syncthreads();  // no thread may overwrite what another still reads
  }
}

/// Which tile of which head a block owns, and which 4 x 4 of it a thread.
struct Place {
  int64_t head, row, column;  // of the tile's first result
  int64_t my_row, my_column;

  __device__ Place(int64_t rows, int64_t columns) {
    const int64_t down = ceil_div<int64_t>(rows, kTile), across = ceil_div<int64_t>(columns, kTile);
    const int64_t block = blockIdx.x;
    column = block % across * kTile;
    row = block / across % down * kTile;
    head = block / across / down;
    my_row = row + threadIdx.x / 16 * kPerThread;
    my_column = column + threadIdx.x % 16 * kPerThread;
  }
  static unsigned blocks(const Params& p, int64_t columns) {
    return static_cast<unsigned>(p.batch * p.heads * ceil_div<int64_t>(p.rows, kTile) *
                                 ceil_div<int64_t>(columns, kTile));
  }
};

/// S = scale Q K^T: the depth is head_dim, dense in both operands.
template <class Element>
__global__ void __launch_bounds__(kThreads) tiled_scores_kernel(const Params p) {
  const Place place(p.rows, p.keys);
  const Element* q = static_cast<const Element*>(p.q) + head_offset(p, place.head, p.rows);
  const Element* k = static_cast<const Element*>(p.k) + head_offset(p, place.head, p.keys);
  const int64_t stride = row_stride(p);
  float sum[kPerThread][kPerThread] = {};
  multiply(sum, p.head_dim, [&](Operand& a, Operand& b, int64_t first) {
    const auto rows_of = [&](const Element* x, int64_t first_row, int64_t rows) {
      return [=, &p](int row, int depth) {
        const bool exists = first_row + row < rows && first + depth < p.head_dim;
        return exists ? to_float(x[(first_row + row) * stride + first + depth]) : 0.0f;
      };
    };
    load<true>(a, rows_of(q, place.row, p.rows));
    load<true>(b, rows_of(k, place.column, p.keys));
  });
  float* scores = p.scores + place.head * p.rows * p.keys;
  for (int i = 0; i < kPerThread && place.my_row + i < p.rows; ++i)
    for (int j = 0; j < kPerThread && place.my_column + j < p.keys; ++j)
      scores[(place.my_row + i) * p.keys + place.my_column + j] = sum[i][j] * static_cast<float>(p.scale);
}

/// O = P V: the depth is the keys, dense in P alone.
template <class Element>
__global__ void __launch_bounds__(kThreads) tiled_values_kernel(const Params p) {
  const Place place(p.rows, p.head_dim);
  const float* probability = p.scores + place.head * p.rows * p.keys;
  const Element* v = static_cast<const Element*>(p.v) + head_offset(p, place.head, p.keys);
  const int64_t stride = row_stride(p);
  float sum[kPerThread][kPerThread] = {};
  multiply(sum, p.keys, [&](Operand& a, Operand& b, int64_t first) {
    load<true>(a, [&](int row, int depth) {
      const bool exists = place.row + row < p.rows && first + depth < p.keys;
      return exists ? probability[(place.row + row) * p.keys + first + depth] : 0.0f;
    });
    load<false>(b, [&](int column, int depth) {
      const bool exists = place.column + column < p.head_dim && first + depth < p.keys;
      return exists ? to_float(v[(first + depth) * stride + place.column + column]) : 0.0f;
    });
  });
  Element* out = static_cast<Element*>(p.out) + head_offset(p, place.head, p.rows);
  for (int i = 0; i < kPerThread && place.my_row + i < p.rows; ++i)
    for (int j = 0; j < kPerThread && place.my_column + j < p.head_dim; ++j)
      out[(place.my_row + i) * stride + place.my_column + j] = from_float<Element>(sum[i][j]);
}

}  // namespace

void launch_tiled(const Params& p, cudaStream_t stream) {
  dispatch_device(p.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    if (p.keys > 0) {
      tiled_scores_kernel<Element><<<Place::blocks(p, p.keys), kThreads, 0, stream>>>(p);
      PLAB_CHECK_LAUNCH();
      launch_softmax(p, stream);
    }
    tiled_values_kernel<Element><<<Place::blocks(p, p.head_dim), kThreads, 0, stream>>>(p);
    PLAB_CHECK_LAUNCH();
  });
}

}  // namespace plab::ops::ladder
