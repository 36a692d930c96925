// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/ptx/tma.cuh"
#include "cuda/tensor_map.h"
#include "ops/attention/tile_scheduler.cuh"

// Tiles as TMA writes them and wgmma reads them: head_dim is cut into chunks of 64 elements (128 bytes), a
// chunk holds all rows of the tile, and 16-byte piece c of row r lies at c ^ (r % 8), the 128-byte swizzle.
// Also what producer and consumer warps share: warpgroups, rings of buffers, warp-uniform values.
namespace plab::ops::attention::sm90 {

namespace ptx = plab::cuda::ptx;

constexpr int kWarpgroup = 128;

// The columns that a row of `head_dim` elements takes in shared memory.
constexpr int whole_chunks(int head_dim) { return (head_dim + 63) / 64 * 64; }

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

// The same value in every lane of the warp, as the compiler then knows: loop counts, buffer numbers and
// descriptors that depend on it stay in uniform registers, where wgmma reads them.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// A tensor as TMA sees it: (column, row, head, batch); with cu_seqlens one batch of all rows.
inline CUtensorMap make_tensor_map(const View& view, ElementType element, int64_t dim, int64_t rows,
                                   int64_t heads, int64_t batch, int tile_rows) {
  // An expanded tensor has a stride of 0, which TMA supports like any other. The stride of a single element is
  // never used.
  const auto bytes = [](int64_t size, int64_t stride) { return cuuint64_t(size > 1 ? stride * 2 : 16); };
  const cuuint64_t sizes[4] = {cuuint64_t(dim), cuuint64_t(rows), cuuint64_t(heads), cuuint64_t(batch)};
  const cuuint64_t strides[3] = {bytes(rows, view.row), bytes(heads, view.head), bytes(batch, view.batch)};
  const cuuint32_t box[4] = {64, cuuint32_t(tile_rows), 1, 1};
  const auto type =
      element == ElementType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return cuda::swizzled_map(type, view.data, sizes, strides, box);
}

// With cu_seqlens the rows behind a sequence belong to the next one. They must not reach a product, not even times
// 0, because they may hold a NaN. So the tensor map describes a tensor in which they do not exist: (column, row of
// a tile, head, stop), where the tile's rows are the tile_rows rows before row `stop` of the real tensor. A tile
// that starts `rows` before the end of its sequence loads the box that starts `rows` before the end of this
// tensor. What is out of bounds arrives as zeros.
inline CUtensorMap make_row_map(const Problem& p, const View& view, int dim, int64_t rows, int64_t heads,
                                int tile_rows) {
  if (p.cu_seqlens_q == nullptr)
    return make_tensor_map(view, p.element, dim, rows, heads, p.batch, tile_rows);
  const int64_t stride = rows > 1 ? view.row : 8;  // a single row has no stride
  const View ragged{static_cast<uint16_t*>(view.data) - tile_rows * stride, stride, stride, view.head};
  return make_tensor_map(ragged, p.element, dim, tile_rows, heads, rows + 1, tile_rows);
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

struct BwdMaps {
  CUtensorMap q, dout, k, v;
};

inline BwdMaps make_bwd_maps(const BwdParams& params, int tile_q, int tile_kv) {
  const Problem& p = params.problem;
  return {make_row_map(p, params.q, p.head_dim, p.q_len, p.heads, tile_q),
          make_row_map(p, params.dout, p.head_dim_v, p.q_len, p.heads, tile_q),
          make_row_map(p, params.k, p.head_dim, p.k_len, p.kv_heads, tile_kv),
          make_row_map(p, params.v, p.head_dim_v, p.k_len, p.kv_heads, tile_kv)};
}

}  // namespace plab::ops::attention::sm90
