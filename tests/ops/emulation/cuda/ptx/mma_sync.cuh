// SPDX-License-Identifier: Apache-2.0
// In place of csrc/cuda/ptx/mma_sync.cuh: the product of the fragments, laid out over the lanes as the PTX
// ISA says.
#pragma once

#include <cstdint>

#include "cuda/vec.cuh"

namespace plab::cuda::ptx {

inline std::uint32_t fragments_a[32][32][4], fragments_b[32][32][2];  // by warp and lane

/// D += A B; A is 16 x 16, B 16 x 8, D 16 x 8.
template <class Element>
void mma_m16n8k16(float& d0, float& d1, float& d2, float& d3, const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) fragments_a[warp][lane][i] = a[i];
  fragments_b[warp][lane][0] = b0, fragments_b[warp][lane][1] = b1;
  __syncwarp();
  const auto half = [](std::uint32_t word, int which) {
    float low, high;
    detail::unpack_word<Element>(word, low, high);
    return which == 0 ? low : high;
  };
  const auto element_a = [&](int row, int k) {
    return half(fragments_a[warp][row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)], k % 2);
  };
  const auto element_b = [&](int k, int col) {
    return half(fragments_b[warp][col * 4 + k % 8 / 2][k / 8], k % 2);
  };
  float* results[4] = {&d0, &d1, &d2, &d3};
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(lane) / 4 + 8 * (i / 2), col = static_cast<int>(lane) % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) *results[i] += element_a(row, k) * element_b(k, col);
  }
  __syncwarp();
}

/// As m16n8k16 with zeros in the second half of the depth.
template <class Element>
void mma_m16n8k8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  const std::uint32_t a[4] = {a0, a1, 0, 0};
  mma_m16n8k16<Element>(d[0], d[1], d[2], d[3], a, b, 0);
}

}  // namespace plab::cuda::ptx
