// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/tma_store.cuh: stores happen at once.
#pragma once

#include "cuda/ptx/tma.cuh"

namespace plab::cuda::ptx {

inline void tma_store_4d(const CUtensorMap* map, std::uint32_t smem, int column, int row, int head,
                         int batch) {
  each_piece(map, smem, column, row, head, batch, [](std::uint32_t shared, unsigned char* global) {
    if (global != nullptr) std::memcpy(global, &at<uint4>(shared), 16);
  });
}
inline void tma_store_commit() {}
inline void tma_store_wait_read() {}

}  // namespace plab::cuda::ptx
