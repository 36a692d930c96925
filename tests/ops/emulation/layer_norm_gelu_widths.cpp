// SPDX-License-Identifier: Apache-2.0
// How layer_norm_gelu takes rows of the widths given, aligned and many, on Hopper (portable/split.h): for each and each
// element type a line with forward and backward. Packed rows have the part of their threads' vectors that is in use behind it,
// and stop the program if a step is larger than its block.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <string>

#include "cuda_on_cpu.h"
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace {

using namespace plab::ops::layer_norm_gelu;
using namespace plab::ops::layer_norm_gelu::portable;
constexpr int64_t kRows = 1 << 16;

/// In the order of launch.cu: packed, if a step fits a block, else shifted.
template <class Config>
std::string text(bool is_packed, bool is_shifted, int64_t cols) {
  using Tile = typename Config::Tile;
  const char* const others = is_shifted ? "shifted" : "apart";
  if (!is_packed) return others;
  Packing packing{};
  packing.cols = static_cast<int>(cols);
  packing.rows_per_bundle = rows_per_bundle(cols, Tile::kVecSize);
  packing.vecs_per_bundle = packing.rows_per_bundle * packing.cols / Tile::kVecSize;
  const PackedLimits limits = packed_limits<Config>();
  const int weight_bytes = Config::Weights::bytes(packing);
  const PackedShape shape =
      choose_packed_shape(limits, kRows, packing.rows_per_bundle, packing.vecs_per_bundle, weight_bytes);
  const int used = shape.bundles * packing.vecs_per_bundle, room = shape.threads * Tile::kVecs;
  const int bytes = shape.threads * limits.bytes_per_thread + limits.static_bytes + weight_bytes;
  if (shape.threads == 0) return others;
  if (used == 0 || used > room || shape.bundles * packing.rows_per_bundle > shape.threads ||
      shape.threads * shape.blocks_per_sm > limits.resident_threads ||
      (bytes + 1024) * shape.blocks_per_sm > 228 << 10)
    std::abort();
  return "packed " + std::to_string(100 * used / room);
}

template <class Element, bool kSplit>
void say(const char* name, int64_t cols) {
  const bool is_aligned = cols % plab::cuda::kVecSize<Element> == 0;
  using Forward = PackedForwardConfig<Element, kSplit, GeluForm::kErf>;
  using Backward = PackedBackwardConfig<Element, kSplit, GeluForm::kErf>;
  const std::string forward = text<Forward>(is_packed_forward<Element>(kRows, cols, is_aligned),
                                            is_shifted_forward<Element>(cols, is_aligned), cols);
  const std::string backward = text<Backward>(is_packed_backward<Element>(kRows, cols, is_aligned),
                                              is_shifted_backward<Element>(kRows, cols, is_aligned), cols);
  std::printf("%s\t%d\t%s\t%s\n", name, static_cast<int>(cols), forward.c_str(), backward.c_str());
}

template <class Element>
void say(const char* name, int64_t cols) {
  if (sizeof(Element) == 2 && cols % plab::cuda::kVecSize<Element> == 0)
    return say<Element, false>(name, cols);
  say<Element, true>(name, cols);
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    const int64_t cols = std::atoll(arguments[i]);
    say<__nv_bfloat16>("bf16", cols);
    say<__half>("fp16", cols);
    say<float>("fp32", cols);
  }
}
