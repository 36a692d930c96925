// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/tma.cuh: copies happen at once, swizzled by the address as the hardware does it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace plab::cuda::ptx {

// What this emulation keeps in a tensor map (cuda/tensor_map.h); elements have 16 bits.
struct Boxes {
  unsigned char* data;
  std::int64_t sizes[4], strides[3], rows;  // innermost first; strides in bytes; rows of a box of 64 columns
};
static_assert(sizeof(Boxes) <= sizeof(CUtensorMap));
inline Boxes boxes_of(const CUtensorMap* map) {
  Boxes boxes;
  std::memcpy(&boxes, map, sizeof boxes);
  return boxes;
}

// Calls with(shared, global) for each 16 bytes of a box; global is null outside of the tensor.
template <class With>
void each_piece(const CUtensorMap* map, std::uint32_t smem, int column, int row, int head, int batch,
                With&& with) {
  const Boxes b = boxes_of(map);
  if (smem % 128 != 0) std::abort();
  for (int r = 0; r < b.rows; ++r) {
    for (int piece = 0; piece < 8; ++piece) {
      const int at[4] = {column + 8 * piece, row + r, head, batch};
      bool inside = true;
      for (int i = 0; i < 4; ++i) inside = inside && at[i] >= 0 && at[i] < b.sizes[i];
      unsigned char* global = b.data + at[0] * 2;
      for (int i = 1; i < 4; ++i) global += at[i] * b.strides[i - 1];
      const std::uint32_t linear = smem + r * 128 + piece * 16;
      with(linear ^ ((linear >> 7 & 7) << 4), inside ? global : nullptr);
    }
  }
}

inline void cp_async_arrive(std::uint32_t barrier) {
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(barrier);
}
inline void complete_bytes(std::uint32_t barrier, std::int64_t bytes) {
  mbarrier_at(barrier).change(0, -bytes);
}

inline void tma_load_4d(std::uint32_t smem, const CUtensorMap* map, std::uint32_t barrier, int column,
                        int row, int head, int batch) {
  each_piece(map, smem, column, row, head, batch, [](std::uint32_t shared, const unsigned char* global) {
    if (global != nullptr)
      std::memcpy(&at<uint4>(shared), global, 16);
    else
      at<uint4>(shared) = {};
  });
  complete_bytes(barrier, boxes_of(map).rows * 128);
}
inline void prefetch_tensor_map(const CUtensorMap*) {}

struct NamedBarrier {
  std::mutex mutex;
  int arrived = 0;
  unsigned phase = 0;
  void arrive(int threads) {
    if (++arrived < threads) return;
    arrived = 0, ++phase;
  }
};
inline NamedBarrier named_barriers[16 + 8];  // the hardware's, and one for each warpgroup's products
inline const bool clears_barriers = [] {
  on_cpu::after_block = [] {
    for (NamedBarrier& b : named_barriers) b.arrived = 0;
  };
  return true;
}();
inline void named_barrier_arrive(int id, int threads) {
  const std::lock_guard lock(named_barriers[id].mutex);
  named_barriers[id].arrive(threads);
}
inline void named_barrier_sync(int id, int threads) {
  NamedBarrier& b = named_barriers[id];
  b.mutex.lock();
  const unsigned phase = b.phase;
  b.arrive(threads);
  b.mutex.unlock();
  on_cpu::wait([&] {
    const std::lock_guard lock(b.mutex);
    return b.phase != phase;
  });
}

template <int kRegisters>
void setmaxnreg_inc() {}
template <int kRegisters>
void setmaxnreg_dec() {}

}  // namespace plab::cuda::ptx
