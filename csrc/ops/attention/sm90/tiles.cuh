// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/ptx/tma.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/tensor_map.h"
#include "ops/attention/softmax.cuh"

// Tiles in shared memory for the wgmma path: head_dim is cut into chunks of 64 elements (128 bytes), a chunk
// holds all rows of the tile, and 16-byte piece c of row r lies at c ^ (r % 8): the 128-byte swizzle that TMA
// writes and wgmma reads.
namespace plab::ops::attention::sm90 {

constexpr int kWarpgroup = 128;

// A tensor as TMA sees it: (column, row, head, batch); with cu_seqlens one batch of all rows.
inline CUtensorMap make_tensor_map(const View& view, ElementType element, int64_t dim, int64_t rows,
                                   int64_t heads, int64_t batch, int tile_rows) {
  // An expanded tensor has a stride of 0, which TMA walks like any other. Nobody steps along a single
  // element.
  const auto bytes = [](int64_t size, int64_t stride) { return cuuint64_t(size > 1 ? stride * 2 : 16); };
  const cuuint64_t sizes[4] = {cuuint64_t(dim), cuuint64_t(rows), cuuint64_t(heads), cuuint64_t(batch)};
  const cuuint64_t strides[3] = {bytes(rows, view.row), bytes(heads, view.head), bytes(batch, view.batch)};
  const cuuint32_t box[4] = {64, cuuint32_t(tile_rows), 1, 1};
  const auto type =
      element == ElementType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return cuda::swizzled_map(type, view.data, sizes, strides, box);
}

// With cu_seqlens the rows behind a sequence are its neighbour's, which must not reach a product, not even
// times 0 (they may hold a NaN). So TMA is shown a tensor in which they do not exist: (column, row of a tile,
// head, stop), where the tile's rows are the tile_rows rows before row `stop` of the real tensor. A tile that
// begins `rows` before its sequence's end asks for the box that begins `rows` before the tensor's end; what
// hangs over arrives as zeros.
inline CUtensorMap make_row_map(const Problem& p, const View& view, int64_t rows, int64_t heads,
                                int tile_rows) {
  if (p.cu_seqlens_q == nullptr)
    return make_tensor_map(view, p.element, p.head_dim, rows, heads, p.batch, tile_rows);
  const int64_t stride = rows > 1 ? view.row : 8;  // a single row has none
  const View ragged{static_cast<uint16_t*>(view.data) - tile_rows * stride, stride, stride, view.head};
  return make_tensor_map(ragged, p.element, p.head_dim, tile_rows, heads, rows + 1, tile_rows);
}

// Where TMA finds the rows from `row` on of a sequence of `length` rows that begins at row `first` of the
// tensor.
struct RowBox {
  int row, batch;
};

template <int kRows>
__device__ __forceinline__ RowBox row_box(const Problem& p, const Tile& tile, int64_t first, int length,
                                          int row) {
  if (p.cu_seqlens_q == nullptr) return {row, tile.batch};
  const int rows = min(kRows, length - row);
  return {kRows - rows, int(first) + row + rows};
}

// Loads a tile of kRows rows, all of head_dim, with one box per chunk; columns behind the tensor's arrive as
// zeros.
template <int kRows, int kDim>
__device__ __forceinline__ void tma_load_tile(uint32_t smem, const CUtensorMap& map, uint32_t barrier,
                                              int row, int head, int batch) {
  ptx::mbarrier_arrive_expect_tx(barrier, kRows * kDim * 2);
#pragma unroll
  for (int chunk = 0; chunk < kDim / 64; ++chunk)
    ptx::tma_load_4d(smem + chunk * kRows * 128, &map, barrier, chunk * 64, row, head, batch);
}

// The address of the step-th group of 16 columns of a K-major tile of kRows rows.
template <int kRows>
__device__ __forceinline__ uint32_t depth_step(uint32_t tile, int step) {
  return tile + uint32_t((step / 4) * kRows * 128 + (step % 4) * 32);
}

// A value that needs every register, for wgmma_wait_after: probabilities have no sign bits, so it is not
// negative.
template <int kRegs>
__device__ __forceinline__ float all_of(const float (&p)[kRegs]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kRegs; ++i) bits |= __float_as_uint(p[i]);
  return __uint_as_float(bits);
}

// A ring of kStages buffers: which buffer comes next, and the parity its barriers will complete with.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// D = A Bᵀ (kAdd: D += A Bᵀ) for this warpgroup's 64 rows of A; both tiles K-major. Issues one group, does
// not wait.
template <class Element, int kN, int kDim, int kRowsA, bool kAdd = false>
__device__ __forceinline__ void issue_nt(float (&d)[kN / 2], uint32_t a_rows, uint32_t b_tile) {
  const uint64_t a = ptx::descriptor_k_major(a_rows), b = ptx::descriptor_k_major(b_tile);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    ptx::Wgmma<Element, kN, false, false>::ss(d, ptx::descriptor_step(a, depth_step<kRowsA>(0, k)),
                                              ptx::descriptor_step(b, depth_step<kN>(0, k)), kAdd || k > 0);
  ptx::wgmma_commit();
}

// D += A B (D = A B unless `add`) with A in registers (a score accumulator, packed) and B a tile whose kDepth
// rows are the product's depth.
template <class Element, int kDim, int kDepth>
__device__ __forceinline__ void issue_nn(float (&d)[kDim / 2], const uint32_t (&a)[kDepth / 16][4],
                                         uint32_t b_tile, bool add = true) {
  const uint64_t b = ptx::descriptor_mn_major(b_tile, kDepth * 128);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k)
    ptx::Wgmma<Element, kDim, false, true>::rs(d, a[k], ptx::descriptor_step(b, k * 2048), add || k > 0);
  ptx::wgmma_commit();
}

// Puts this warpgroup's 64 accumulator rows (times factor[h]) as 16-bit elements into a tile of kRows rows.
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void stage_rows_sm90(uint32_t tile, int row0, const float (&acc)[kDim / 2],
                                                const float (&factor)[2]) {
  const int lane = int(threadIdx.x & 31), warp = int(threadIdx.x % kWarpgroup / 32);
#pragma unroll
  for (int i = 0; i < kDim / 2; i += 2) {
    const int h = i / 2 % 2, row = row0 + 16 * warp + lane / 4 + 8 * h, piece = i / 4;
    const uint32_t at =
        tile + (piece / 8) * kRows * 128 + row * 128 + (((piece % 8) ^ (row & 7)) << 4) + 4 * (lane % 4);
    ptx::store_shared(at, ptx::pack_pair<Element>(acc[i] * factor[h], acc[i + 1] * factor[h]));
  }
}

// 64 rows from shared to global memory by one warpgroup, within the valid rows and columns.
template <int kRows, int kDim, class Element>
__device__ __forceinline__ void store_rows_sm90(Element* global, int64_t stride, uint32_t tile, int row0,
                                                int rows_valid, int cols_valid) {
  constexpr int kPieces = kDim / 8, kStep = kWarpgroup / kPieces;
  const int piece = int(threadIdx.x) % kPieces, first = int(threadIdx.x % kWarpgroup) / kPieces;
  if (piece * 8 >= cols_valid) return;
#pragma unroll 4
  for (int row = row0 + first; row < row0 + 64; row += kStep) {
    if (row >= rows_valid) return;
    const uint32_t at = tile + (piece / 8) * kRows * 128 + row * 128 + (((piece % 8) ^ (row & 7)) << 4);
    *reinterpret_cast<uint4*>(global + row * stride + piece * 8) = ptx::load_shared_16(at);
  }
}

}  // namespace plab::ops::attention::sm90
