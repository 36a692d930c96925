// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/wgmma.cuh. A product happens at the last moment at which it may, when it is waited for:
// who gives a tile back or overwrites an operand in registers before, computes with the wrong one.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "cuda/ptx/tma.cuh"

namespace plab::cuda::ptx {

inline on_cpu::OfThread<std::vector<std::function<void()>>> issued;
inline on_cpu::OfThread<std::deque<std::vector<std::function<void()>>>> committed_products;

inline void wgmma_fence() {}
inline void wgmma_commit() {
  committed_products.mine().push_back(std::move(issued.mine()));
  issued.mine().clear();
}
template <int kPending>
void wgmma_wait() {
  if (!issued.mine().empty()) std::abort();  // never committed
  auto& groups = committed_products.mine();
  const bool done = groups.size() > kPending;
  while (groups.size() > kPending) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
  // Four warps issue a product together, and one thread may give back what all of them have read.
  if (done) named_barrier_sync(16 + int(threadIdx.x / 128), 128);
}
template <int kPending>
void wgmma_wait_after(float) {
  wgmma_wait<kPending>();
}
template <int kRegs>
void keep(float (&)[kRegs]) {}
template <int kSteps>
void keep(std::uint32_t (&)[kSteps][4]) {}

// As csrc/cuda/ptx/wgmma.cuh makes them.
inline std::uint64_t descriptor_k_major(std::uint32_t smem) {
  return std::uint64_t((smem & 0x3ffff) >> 4) | std::uint64_t(1) << 16 | std::uint64_t(1024 >> 4) << 32 |
         std::uint64_t(1) << 62;
}
inline std::uint64_t descriptor_mn_major(std::uint32_t smem, std::uint32_t chunk_bytes) {
  return std::uint64_t((smem & 0x3ffff) >> 4) | std::uint64_t(chunk_bytes >> 4) << 16 |
         std::uint64_t(1024 >> 4) << 32 | std::uint64_t(1) << 62;
}
inline std::uint64_t descriptor_step(std::uint64_t descriptor, std::uint32_t bytes) {
  return (descriptor & 0xffffffff00000000) | (std::uint32_t(descriptor) + (bytes >> 4));
}

// Element (row, depth) of an operand that a descriptor names: rows of A, columns of B.
template <class Element>
float element_of(std::uint64_t descriptor, bool is_mn_major, int row, int depth) {
  const auto field = [&](int shift) { return std::uint32_t(descriptor >> shift & 0x3fff) << 4; };
  const std::uint32_t linear =
      is_mn_major ? field(0) + row / 64 * field(16) + depth / 8 * field(32) + depth % 8 * 128 + row % 64 * 2
                  : field(0) + row / 8 * field(32) + row % 8 * 128 + depth * 2;
  return to_float<Element>(at<std::uint16_t>(linear ^ ((linear >> 7 & 7) << 4)));
}

template <class Element, int kN, bool kTransposeA, bool kTransposeB>
struct Wgmma {
  template <class A>  // a(h, depth): of this thread's row 16 warp + lane / 4 + 8h
  static void multiply(float (&d)[kN / 2], A&& a, std::uint64_t b, int add) {
    const int lane = int(threadIdx.x % 32);
    for (int i = 0; i < kN / 2; ++i) {
      const int h = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = add ? d[i] : 0.f;
      for (int k = 0; k < 16; ++k) sum += a[h][k] * element_of<Element>(b, kTransposeB, column, k);
      d[i] = sum;
    }
  }
  static void ss(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, int add) {
    issued.mine().push_back([&d, a, b, add] {
      float of[2][16];
      const int row = int(threadIdx.x % 128) / 32 * 16 + int(threadIdx.x % 32) / 4;
      for (int h = 0; h < 2; ++h)
        for (int k = 0; k < 16; ++k) of[h][k] = element_of<Element>(a, kTransposeA, row + 8 * h, k);
      multiply(d, of, b, add);
    });
  }
  static void rs(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
    issued.mine().push_back([&d, &a, b, add] {
      const Registers* all = exchanged({{a[0], a[1], a[2], a[3]}});
      const int quad = int(threadIdx.x % 32) / 4 * 4;
      float of[2][16];
      for (int h = 0; h < 2; ++h)
        for (int k = 0; k < 16; ++k)
          of[h][k] = to_float<Element>(half_of(all[quad + k % 8 / 2].value[h + 2 * (k / 8)], k % 2));
      __syncwarp();
      multiply(d, of, b, add);
    });
  }
};

template <bool kTranspose>
void store_matrices(std::uint32_t smem, const std::uint32_t (&r)[4]) {
  if (smem % 16 != 0) std::abort();
  const Registers* all = exchanged({{smem, r[0], r[1], r[2], r[3]}});
  const int lane =
      int(threadIdx.x % 32);  // stores row lane % 8 of matrix lane / 8, which it has the address of
  for (int i = 0; i < 8; ++i) {
    const int from = kTranspose ? i * 4 + lane % 8 / 2 : lane % 8 * 4 + i / 2;
    at<std::uint16_t>(smem + 2 * i) = half_of(all[from].value[1 + lane / 8], kTranspose ? lane % 2 : i % 2);
  }
  __syncwarp();
}
inline void stmatrix_x4(std::uint32_t smem, const std::uint32_t (&r)[4]) { store_matrices<false>(smem, r); }
inline void stmatrix_x4_transposed(std::uint32_t smem, const std::uint32_t (&r)[4]) {
  store_matrices<true>(smem, r);
}

}  // namespace plab::cuda::ptx
