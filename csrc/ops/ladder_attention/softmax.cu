// SPDX-License-Identifier: Apache-2.0
// The softmax of the rungs that store their scores, in place.
//
// Mapping   one warp per row.
// Bytes     a row is read for its maximum, for its sum and for its probabilities, and written once: 16 bytes
//           a score, from L2 where the row is short enough to have stayed there.
// Roof      memory.
// Contract  ladder_attention.h; keys > 0.
#include "cuda/reduce.cuh"
#include "ops/ladder_attention/device.cuh"

namespace plab::ops::ladder {
namespace {

__global__ void __launch_bounds__(kThreads) ladder_softmax_kernel(const Params p) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (index >= p.batch * p.heads * p.rows) return;
  float* row = p.scores + index * p.keys;
  const int64_t visible = visible_keys(p, index % p.rows);
  const int lane = static_cast<int>(threadIdx.x) % 32;

  float top = -INFINITY;
  for (int64_t j = lane; j < visible; j += 32) top = fmaxf(top, row[j]);
  for (int offset = 16; offset > 0; offset /= 2)
    top = fmaxf(top, __shfl_xor_sync(cuda::kAllLanes, top, offset));
  float sum[1] = {0.0f};
  for (int64_t j = lane; j < visible; j += 32) sum[0] += expf(row[j] - top);
  cuda::warp_sum(sum);
  for (int64_t j = lane; j < p.keys; j += 32) row[j] = j < visible ? expf(row[j] - top) / sum[0] : 0.0f;
}

}  // namespace

void launch_softmax(const Params& p, cudaStream_t stream) {
  const int64_t rows = p.batch * p.heads * p.rows;
  ladder_softmax_kernel<<<static_cast<unsigned>(ceil_div<int64_t>(rows, kThreads / 32)), kThreads, 0,
                          stream>>>(p);
  PLAB_CHECK_LAUNCH();
}

}  // namespace plab::ops::ladder
