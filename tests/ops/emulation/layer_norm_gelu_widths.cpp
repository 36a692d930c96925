// SPDX-License-Identifier: Apache-2.0
// How layer_norm_gelu takes rows of the widths given, aligned and many (portable/split.h): for each the element type,
// and forward, backward and backward with a residual. Packed rows have the part of their threads' vectors that is
// in use behind it, and stop the program if a step does not fit its block.
#include <cuda_bf16.h>

#include <cstdio>
#include <string>

#include "cuda_on_cpu.h"
#include "ops/layer_norm_gelu/portable/packed_backward.cuh"
#include "ops/layer_norm_gelu/portable/packed_forward.cuh"
#include "ops/layer_norm_gelu/portable/packed_launch.cuh"

namespace plab::cuda {

/// Those of an H200.
int device_attribute(cudaDeviceAttr attribute) {
  if (attribute == cudaDevAttrMaxSharedMemoryPerMultiprocessor) return 228 << 10;
  if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) return 227 << 10;
  if (attribute == cudaDevAttrReservedSharedMemoryPerBlock) return 1 << 10;
  if (attribute == cudaDevAttrMultiProcessorCount) return 132;
  std::abort();
}

}  // namespace plab::cuda

namespace {

using namespace plab::ops::layer_norm_gelu;
using namespace plab::ops::layer_norm_gelu::portable;
constexpr int64_t kRows = 1 << 16;

template <class Config>
std::string text(Way way, int64_t cols) {
  using Tile = typename Config::Tile;
  if (way != Way::kPacked) return way == Way::kApart ? "apart" : "shifted";
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
  if (used == 0 || used > room || shape.bundles * packing.rows_per_bundle > shape.threads ||
      shape.threads * shape.blocks_per_sm > limits.resident_threads ||
      (bytes + 1024) * shape.blocks_per_sm > 228 << 10)
    std::abort();
  return "packed " + std::to_string(100 * used / room);
}

template <class Element, bool kSplit>
void say(const char* name, int64_t cols) {
  using Forward = PackedForwardConfig<Element, kSplit, GeluForm::kErf, false>;
  using Backward = PackedBackwardConfig<Element, kSplit, GeluForm::kErf, false>;
  using WithResidual = PackedBackwardConfig<Element, kSplit, GeluForm::kErf, true>;
  std::printf("%s\t%d\t%s\t%s\t%s\n", name, static_cast<int>(cols),
              text<Forward>(way_of_forward_row<Element>(cols, !kSplit), cols).c_str(),
              text<Backward>(way_of_backward_row<Element>(kRows, cols, !kSplit, false), cols).c_str(),
              text<WithResidual>(way_of_backward_row<Element>(kRows, cols, !kSplit, true), cols).c_str());
}

template <class Element>
void say(const char* name, int64_t cols) {
  if (cols % plab::cuda::kVecSize<Element> == 0) return say<Element, false>(name, cols);
  say<Element, true>(name, cols);
}

}  // namespace

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    say<__nv_bfloat16>("bf16", std::atoll(arguments[i]));
    say<float>("fp32", std::atoll(arguments[i]));
  }
}
