// SPDX-License-Identifier: Apache-2.0
// Rung 3, flash: one kernel, and no score matrix anywhere. A block keeps 64 queries and walks the keys.
//
// Mapping   a block of 16 x 16 threads owns 64 queries of one head. A thread owns 4 rows: of a tile of scores
//           the keys tx, tx + 16, ..., of the output the columns 4 tx .. 4 tx + 3 of each 64.
// Bytes     Q and O once, K and V once per 64 queries: at head_dim 64 and fp32 two flops to a byte of L2 for
//           each of the 64 queries. Scores live in registers, probabilities in 17 KB of shared memory.
// Flops     4 rows keys head_dim a head; half of it under a causal mask, whose invisible tiles are skipped.
// Roof      the fp32 units, 67 TFLOP/s on an H200, shared with the loads from shared memory that feed them:
//           8 loads of 16 bytes for 64 multiply-adds. The next rung is the tensor cores, in attention/.
// Contract  ladder_attention.h; head_dim up to kFlashMaxHeadDim.
#include "cuda/reduce.cuh"
#include "ops/ladder_attention/device.cuh"

namespace plab::ops::ladder {
namespace {

constexpr int kQueries = 64, kKeys = 64, kRows = 4;  // a tile; a thread's rows of it
constexpr int kColumns = 4;                          // of a tile of scores

/// Rows of shared memory are 16 bytes longer than they hold: then eight threads that read the same 16-byte
/// column of eight rows access each of the 32 banks once.
constexpr int padded(int columns) { return columns + 4; }

template <int kDim>
struct Shared {
  float q[kQueries][padded(kDim)];
  float kv[kKeys][padded(kDim)];  // K until the scores are there, then V
  float p[kQueries][padded(kKeys)];
};

/// Rows [first, first + 64) of one head; zeros beyond the last row and column, which add nothing to a
/// product.
template <int kDim, class Element>
__device__ void load(float (&tile)[64][padded(kDim)], const Element* head, int64_t first, int64_t rows,
                     const Params& p) {
  for (int i = static_cast<int>(threadIdx.x); i < 64 * kDim; i += kThreads) {
    const int row = i / kDim, column = i % kDim;
    const bool exists = first + row < rows && column < p.head_dim;
    tile[row][column] = exists ? to_float(head[(first + row) * row_stride(p) + column]) : 0.0f;
  }
}

__device__ __forceinline__ float4 four(const float* address) {
  return *reinterpret_cast<const float4*>(address);
}
__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 v) {
  sum.x = fmaf(factor, v.x, sum.x), sum.y = fmaf(factor, v.y, sum.y);
  sum.z = fmaf(factor, v.z, sum.z), sum.w = fmaf(factor, v.w, sum.w);
}

/// Over the 16 threads that share a row: half a warp.
template <class Combine>
__device__ __forceinline__ float across_row(float value, const Combine& combine) {
  for (int offset = 8; offset > 0; offset /= 2)
    value = combine(value, __shfl_xor_sync(cuda::kAllLanes, value, offset));
  return value;
}

template <class Element, int kDim>
__global__ void __launch_bounds__(kThreads, 2) ladder_flash_kernel(const Params p) {
  extern __shared__ float4 memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int64_t tiles = ceil_div<int64_t>(p.rows, kQueries);
  const int64_t head = blockIdx.x / tiles, first_row = blockIdx.x % tiles * kQueries;
  const Element* q = static_cast<const Element*>(p.q) + head_offset(p, head, p.rows);
  const Element* k = static_cast<const Element*>(p.k) + head_offset(p, head, p.keys);
  const Element* v = static_cast<const Element*>(p.v) + head_offset(p, head, p.keys);
  const int tx = static_cast<int>(threadIdx.x) % 16, my_row = static_cast<int>(threadIdx.x) / 16 * kRows;

  // The state of a row, whatever the number of keys: the largest score, the sum of the exponentials relative to it,
  // and one sum of values per output column.
  float top[kRows], sum[kRows];
  float4 out[kRows][kDim / 64];
  for (int i = 0; i < kRows; ++i) {
    top[i] = -INFINITY, sum[i] = 0.0f;
    for (float4& columns : out[i]) columns = float4{0, 0, 0, 0};
  }
  load<kDim>(shared.q, q, first_row, p.rows, p);

  const int64_t last_row = min(first_row + kQueries, p.rows) - 1;
  for (int64_t first_key = 0; first_key < visible_keys(p, last_row); first_key += kKeys) {
    __syncthreads();  // the last tile's V is no longer read
    load<kDim>(shared.kv, k, first_key, p.keys, p);
    __syncthreads();

    float score[kRows][kColumns] = {};
#pragma unroll 4
    for (int c = 0; c < kDim; c += 4) {
      float4 key[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) key[j] = four(&shared.kv[tx + 16 * j][c]);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float4 query = four(&shared.q[my_row + i][c]);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) score[i][j] = dot(query, key[j], score[i][j]);
      }
    }

    // The online softmax. A new maximum scales everything summed so far by the same factor.
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t visible = visible_keys(p, first_row + my_row + i) - first_key;  // of this tile
      float new_top = top[i];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        score[i][j] = tx + 16 * j < visible ? score[i][j] * static_cast<float>(p.scale) : -INFINITY;
        new_top = fmaxf(new_top, score[i][j]);
      }
      new_top = across_row(new_top, [](float a, float b) { return fmaxf(a, b); });
      const float base = new_top == -INFINITY ? 0.0f : new_top;  // a row that sees nothing yet: no inf - inf
      const float shrink = expf(top[i] - base);
      float added = 0.0f;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float weight = expf(score[i][j] - base);
        shared.p[my_row + i][tx + 16 * j] = weight;
        added += weight;
      }
      sum[i] = sum[i] * shrink + across_row(added, [](float a, float b) { return a + b; });
      for (float4& o : out[i]) o.x *= shrink, o.y *= shrink, o.z *= shrink, o.w *= shrink;
      top[i] = new_top;
    }

    __syncthreads();  // K is no longer read
    load<kDim>(shared.kv, v, first_key, p.keys, p);
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < kKeys; j += 4) {
      float4 weight[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) weight[i] = four(&shared.p[my_row + i][j]);
#pragma unroll
      for (int c = 0; c < kDim / 64; ++c) {
        const int column = 64 * c + 4 * tx;
        const float4 v0 = four(&shared.kv[j][column]), v1 = four(&shared.kv[j + 1][column]),
                     v2 = four(&shared.kv[j + 2][column]), v3 = four(&shared.kv[j + 3][column]);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          add_scaled(out[i][c], weight[i].x, v0), add_scaled(out[i][c], weight[i].y, v1);
          add_scaled(out[i][c], weight[i].z, v2), add_scaled(out[i][c], weight[i].w, v3);
        }
      }
    }
  }

  for (int i = 0; i < kRows; ++i) {
    const int64_t row = first_row + my_row + i;
    if (row >= p.rows) break;
    Element* target = static_cast<Element*>(p.out) + head_offset(p, head, p.rows) + row * row_stride(p);
    const float inverse = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
    for (int c = 0; c < kDim / 64; ++c) {
      const float columns[] = {out[i][c].x, out[i][c].y, out[i][c].z, out[i][c].w};
      for (int j = 0; j < 4; ++j) {
        const int column = 64 * c + 4 * tx + j;
        if (column < p.head_dim) target[column] = from_float<Element>(columns[j] * inverse);
      }
    }
  }
}

template <class Element, int kDim>
void launch(const Params& p, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared<kDim>));
  if (kBytes > cuda::max_shared_bytes())
    cuda::fail("ladder_attention: the flash rung needs %d bytes of shared memory a block; this GPU has %d",
               kBytes, cuda::max_shared_bytes());
  PLAB_CUDA_CHECK(cudaFuncSetAttribute(ladder_flash_kernel<Element, kDim>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int64_t blocks = p.batch * p.heads * ceil_div<int64_t>(p.rows, kQueries);
  ladder_flash_kernel<Element, kDim><<<static_cast<unsigned>(blocks), kThreads, kBytes, stream>>>(p);
  PLAB_CHECK_LAUNCH();
}

}  // namespace

void launch_flash(const Params& p, cudaStream_t stream) {
  dispatch_device(p.type, [&](auto tag) {
    using Element = typename decltype(tag)::type;
    p.head_dim <= 64 ? launch<Element, 64>(p, stream) : launch<Element, 128>(p, stream);
  });
}

}  // namespace plab::ops::ladder
