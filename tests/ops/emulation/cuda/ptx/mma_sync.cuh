// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/mma_sync.cuh: products and matrix loads of a warp by the register layouts of the
// PTX ISA. A shared address counts from the start of the cluster's memory, where each block has a region.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/ptx/cp_async.cuh"

namespace plab::cuda::ptx {

constexpr std::uint32_t kRegion = 256 << 10;
inline std::vector<unsigned char> cluster_memory(32 * kRegion);

inline std::uint32_t shared_address(const void*) { return on_cpu::rank() * kRegion; }

template <class T>
T& at(std::uint32_t address) {
  if (address % alignof(T) != 0) std::abort();
  if (address >= on_cpu::kDynamic) return *static_cast<T*>(on_cpu::of_dynamic_address(address));
  if (address + sizeof(T) > cluster_memory.size()) std::abort();
  return *reinterpret_cast<T*>(cluster_memory.data() + address);
}

struct Registers {
  std::uint32_t value[6];
};
inline Registers exchange[32][32];
inline Registers* exchanged(const Registers& mine) {
  const unsigned warp = on_cpu::warp_of_cluster();
  exchange[warp][threadIdx.x % 32] = mine;
  __syncwarp();
  return exchange[warp];
}

inline std::uint16_t half_of(std::uint32_t pair, int which) {
  return static_cast<std::uint16_t>(which ? pair >> 16 : pair);
}

template <bool kTranspose>
void load_matrices(std::uint32_t (&r)[4], std::uint32_t smem) {
  if (smem % 16 != 0) std::abort();
  const Registers* rows = exchanged({{smem}});
  const int lane = int(threadIdx.x % 32), first = lane / 4, second = lane % 4 * 2;
  for (int matrix = 0; matrix < 4; ++matrix) {
    std::uint32_t pair = 0;
    for (int i = 0; i < 2; ++i) {
      const int row = kTranspose ? second + i : first, column = kTranspose ? first : second + i;
      pair |= std::uint32_t{at<std::uint16_t>(rows[8 * matrix + row].value[0] + 2 * column)} << (16 * i);
    }
    r[matrix] = pair;
  }
  __syncwarp();
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t smem) { load_matrices<false>(r, smem); }
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t smem) { load_matrices<true>(r, smem); }

template <class Element>
float to_float(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<Element>(bits));
}

template <class Element>
void mma_m16n8k16(float& d0, float& d1, float& d2, float& d3, const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  const Registers* all = exchanged({{a[0], a[1], a[2], a[3], b0, b1}});
  const int lane = int(threadIdx.x % 32);
  float* const d[2][2] = {{&d0, &d1}, {&d2, &d3}};
  for (int h = 0; h < 2; ++h) {
    for (int c = 0; c < 2; ++c) {
      const int row = lane / 4, column = lane % 4 * 2 + c;
      for (int k = 0; k < 16; ++k) {
        const std::uint32_t left = all[row * 4 + k % 8 / 2].value[h + 2 * (k / 8)];
        const std::uint32_t right = all[column * 4 + k % 8 / 2].value[4 + k / 8];
        *d[h][c] += to_float<Element>(half_of(left, k % 2)) * to_float<Element>(half_of(right, k % 2));
      }
    }
  }
  __syncwarp();
}

inline const uint4 kZeros{};
inline void cp_async_16(std::uint32_t smem, const void* global, bool valid) {
  cp_async_cg(&at<uint4>(smem), valid ? global : &kZeros);
}
inline void cp_async_commit() { cp_async_commit_group(); }
template <int kPending>
void cp_async_wait() {
  cp_async_wait_group<kPending>();
}

template <class Element>
std::uint32_t pack_pair(float low, float high) {
  const auto bits = [](float v) { return std::uint32_t{std::bit_cast<std::uint16_t>(Element(v))}; };
  return bits(low) | bits(high) << 16;
}

inline void store_shared(std::uint32_t smem, std::uint32_t value) { at<std::uint32_t>(smem) = value; }
inline void store_shared_16(std::uint32_t smem, uint4 v) { at<uint4>(smem) = v; }
inline uint4 load_shared_16(std::uint32_t smem) { return at<uint4>(smem); }
inline float load_shared_float(std::uint32_t smem) { return at<float>(smem); }
inline float2 load_shared_float2(std::uint32_t smem) { return at<float2>(smem); }

}  // namespace plab::cuda::ptx
