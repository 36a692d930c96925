// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/vec.cuh"
#include "ops/attention/sm90/bwd_workspace.cuh"
#include "ops/attention/softmax.cuh"

// The kernel before the backward up to head_dim 128: computes row statistics and initialises the workspace.
namespace plab::ops::attention::sm90 {

// Splits x into three bfloat16 whose sum is x.
__device__ __forceinline__ void split_in_three(float x, float (&part)[3]) {
  part[0] = __bfloat162float(__float2bfloat16_rn(x));
  part[1] = __bfloat162float(__float2bfloat16_rn(x - part[0]));
  part[2] = x - part[0] - part[1];
}

// attention_bwd_sm90_prepare: delta = rowsum(dO O) - dLSE and the LSE of a tile's queries in the form the
// main kernel reads; the tile's turns become 0, and so does the counter of key tiles.
// Mapping   one block per query tile, kHeadDim / 8 lanes per row, 16 bytes each
// Bytes     B H Sq (4 D + 24)        Flops  2 B H Sq D        Roof  memory
// Contract  attention.h. A query that does not exist, or sees nothing, gets an LSE that makes its P 0.
template <class Config>
__global__ void __launch_bounds__(kWarpgroup)
    attention_bwd_sm90_prepare_kernel(const __grid_constant__ BwdParams p,
                                      const __grid_constant__ TileGrid grid) {
  using Element = typename Config::Element;
  constexpr int kLanes = Config::kHeadDim / 8, kRows = kWarpgroup / kLanes;  // rows at a time
  const Problem& problem = p.problem;
  const BwdWorkspace<Config> workspace(p);
  ptx::launch_dependents();
  if (blockIdx.x == 0 && threadIdx.x == 0) *workspace.counter() = 0;
  const Tile tile = find_tile(problem, grid, true, blockIdx.x);
  if (!tile.valid) return;
  const int64_t number = workspace.first_tile(problem, tile, tile.head) + tile.row / Config::kTileQ;
  if (threadIdx.x < 2) *workspace.turn(number, int(threadIdx.x)) = 0;
  float* const statistics = workspace.statistics(number);
  const int lane = int(threadIdx.x) % kLanes;
  const int64_t first = tile.batch * p.rows.batch + tile.head * p.rows.head + tile.q_row + tile.row;
#pragma unroll 4
  for (int i = int(threadIdx.x) / kLanes; i < Config::kTileQ; i += kRows) {
    const bool exists = tile.row + i < tile.q_len;
    float sum = 0.f;
    if (exists && lane * 8 < problem.head_dim_v) {
      const int64_t row = tile.q_row + tile.row + i;
      const auto load = [&](const View& view) {
        return cuda::Vec<Element>{*reinterpret_cast<const uint4*>(
            row_pointer<const Element>(view, tile.batch, row, tile.head) + lane * 8)};
      };
      sum = cuda::dot(load(p.out), load(p.dout));
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane != 0) continue;
    const float lse = exists ? static_cast<const float*>(p.lse)[first + i] : -INFINITY;
    const bool empty = lse == -INFINITY;  // the row sees nothing: the gradient of its LSE has no effect
    const float dlse = p.dlse != nullptr && !empty ? static_cast<const float*>(p.dlse)[first + i] : 0.f;
    const float delta = empty ? 0.f : sum - dlse;
    if constexpr (Config::kProduct) {
      // -LSE in the scores' own units and -delta; the value used for infinity must be finite, so that 0 times it is 0.
      float l[3], d[3];
      split_in_three(empty ? -1e38f : fmaxf(-lse / float(problem.scale), -1e38f), l);
      split_in_three(-delta, d);
      using Bf = __nv_bfloat16;
      reinterpret_cast<uint4*>(statistics)[i] = make_uint4(
          ptx::pack_pair<Bf>(l[0], l[1]), ptx::pack_pair<Bf>(l[2], d[0]), ptx::pack_pair<Bf>(d[1], d[2]), 0);
    } else {
      statistics[i] = empty ? INFINITY : lse * kLog2e;
      statistics[Config::kTileQ + i] = delta;
    }
  }
}

}  // namespace plab::ops::attention::sm90
