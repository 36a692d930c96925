// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/ptx/dependent_launch.cuh"
#include "ops/attention/sm90/launch.h"
#include "ops/attention/sm90/sm90.h"

namespace plab::ops::attention::sm90 {
namespace {

// TMA walks no strides of 2^40 bytes and more.
bool tma_reads(const View& view, int64_t rows, int64_t heads, int64_t batch) {
  const auto walks = [](int64_t size, int64_t stride) { return size <= 1 || stride < int64_t{1} << 39; };
  return walks(rows, view.row) && walks(heads, view.head) && walks(batch, view.batch);
}

int64_t view_batch(const Problem& p) { return p.cu_seqlens_q ? 1 : p.batch; }

__global__ void clear_counter_kernel(int32_t* counter) {
  cuda::ptx::launch_dependents();  // the forward waits for the end of this kernel only before it counts
  *counter = 0;
}

}  // namespace

bool takes(const FwdParams& params) {
  const Problem& p = params.problem;
  return p.k_len > 0 && tma_reads(params.q, p.q_len, p.heads, view_batch(p)) &&
         tma_reads(params.k, p.k_len, p.kv_heads, view_batch(p)) &&
         tma_reads(params.v, p.k_len, p.kv_heads, view_batch(p));
}

bool takes(const BwdParams& params) {
  const Problem& p = params.problem;
  return p.scale > 0 && p.k_len > 0 && p.q_len > 0 && tma_reads(params.q, p.q_len, p.heads, view_batch(p)) &&
         tma_reads(params.dout, p.q_len, p.heads, view_batch(p)) &&
         tma_reads(params.k, p.k_len, p.kv_heads, view_batch(p)) &&
         tma_reads(params.v, p.k_len, p.kv_heads, view_batch(p));
}

// Without a mask tiles of 128 rows come out even, and a counter would only cost its two microseconds.
bool counts_tiles(const Problem& p) {
  return p.cu_seqlens_q != nullptr || p.window_right >= 0 || p.head_dim <= 64;
}

int64_t dq_sum_floats(const BwdParams& params) {
  if (params.problem.head_dim > 128) return 0;
  return params.problem.head_dim <= 64 ? scratch_bwd_d64(params) : scratch_bwd_d128(params);
}

bool makes_statistics(const BwdParams& params) {
  return params.problem.head_dim <= 128 && params.dsink == nullptr;
}

void launch_fwd(const FwdParams& params, cudaStream_t stream) {
  if (params.next_tile != nullptr && params.problem.cu_seqlens_q == nullptr) {
    clear_counter_kernel<<<1, 1, 0, stream>>>(params.next_tile);
    PLAB_CHECK_LAUNCH();
  }
  if (params.problem.head_dim <= 64)
    launch_fwd_d64(params, stream);
  else if (params.problem.head_dim <= 128)
    launch_fwd_d128(params, stream);
  else
    launch_fwd_d256(params, stream);
}

void launch_bwd(const BwdParams& params, cudaStream_t stream) {
  if (params.problem.head_dim <= 64)
    launch_bwd_d64(params, stream);
  else if (params.problem.head_dim <= 128)
    launch_bwd_d128(params, stream);
  else
    launch_bwd_d256(params, stream);
}

}  // namespace plab::ops::attention::sm90
