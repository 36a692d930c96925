// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/vec.cuh"
#include "ops/attention/prepare.cuh"
#include "ops/attention/softmax.cuh"

namespace plab::ops::attention {
namespace {

constexpr int kThreads = 128;

// row_statistics: delta = rowsum(dO O) - dLSE and LSE in units of log2, one pass before the backward.
// Mapping   kLanes lanes per row, 16 bytes each; rows run over (batch, head, row).
// Bytes     B H Sq (4 D + 16)        Flops  2 B H Sq D       Roof  memory, 2 to 4 % of the backward at Sq =
// 2048 Contract  attention.h.
template <class Element, int kLanes>
__global__ void __launch_bounds__(kThreads)
    row_statistics_kernel(const __grid_constant__ BwdParams p, int64_t count) {
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const int lane = int(threadIdx.x) % kLanes;
  if (index >= count) return;
  const Problem& problem = p.problem;
  const int64_t row = index % problem.q_len, group = index / problem.q_len;
  const int head = int(group % problem.heads), batch = int(group / problem.heads);
  float sum = 0.f;
  if (lane * 8 < problem.head_dim) {
    const auto load = [&](const View& view) {
      return cuda::Vec<Element>{
          *reinterpret_cast<const uint4*>(row_pointer<const Element>(view, batch, row, head) + lane * 8)};
    };
    sum = cuda::dot(load(p.out), load(p.dout));
  }
  const uint32_t mask = kLanes == 32 ? ~0u : ((1u << kLanes) - 1) << (threadIdx.x & 31 & ~(kLanes - 1));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(mask, sum, step);
  if (lane != 0) return;
  const int64_t at = batch * p.rows.batch + head * p.rows.head + row;
  const float lse = static_cast<const float*>(p.lse)[at];
  const bool empty = lse == -INFINITY;  // nothing visible: whatever arrives for this row's LSE has no effect
  const float dlse = p.dlse != nullptr && !empty ? static_cast<const float*>(p.dlse)[at] : 0.f;
  static_cast<float*>(p.delta)[at] = empty ? 0.f : sum - dlse;
  static_cast<float*>(p.lse_log2)[at] = empty ? INFINITY : lse * kLog2e;
}

// The gradient of one head's sink logit, -sum over rows of P_sink · delta, always in the same order.
__global__ void __launch_bounds__(kThreads) sink_gradient_kernel(const __grid_constant__ BwdParams p) {
  const Problem& problem = p.problem;
  const int head = int(blockIdx.x), batches = problem.cu_seqlens_q ? 1 : problem.batch;
  const float logit = static_cast<const float*>(problem.sink)[head] * kLog2e;
  float sum = 0.f;
  for (int64_t i = threadIdx.x; i < batches * problem.q_len; i += kThreads) {
    const int64_t at = i / problem.q_len * p.rows.batch + head * p.rows.head + i % problem.q_len;
    sum -= ptx::ex2_approx_ftz(logit - static_cast<const float*>(p.lse_log2)[at]) *
           static_cast<const float*>(p.delta)[at];
  }
  __shared__ float partial[kThreads];
  partial[threadIdx.x] = sum;
  for (int width = kThreads / 2; width > 0; width /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < width) partial[threadIdx.x] += partial[threadIdx.x + width];
  }
  if (threadIdx.x == 0) static_cast<float*>(p.dsink)[head] = partial[0];
}

// Rows that no sequence owns (behind the last offset of cu_seqlens) become zeros, in every head.
__device__ void clear_tail(const View& view, int64_t first, int64_t rows, int heads, int dim) {
  const int64_t count = (rows - first) * heads * (dim / 8);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const int chunk = int(i % (dim / 8)), head = int(i / (dim / 8) % heads);
    const int64_t row = first + i / (dim / 8) / heads;
    *reinterpret_cast<uint4*>(row_pointer<uint16_t>(view, 0, row, head) + chunk * 8) = make_uint4(0, 0, 0, 0);
  }
}

__global__ void __launch_bounds__(kThreads)
    clear_tail_kernel(View view, const int32_t* end, int64_t rows, int heads, int dim) {
  clear_tail(view, *end, rows, heads, dim);
}

__global__ void __launch_bounds__(kThreads) fwd_prepare_kernel(const __grid_constant__ FwdParams p) {
  const Problem& problem = p.problem;
  const int heads = problem.heads;
  const int64_t first = problem.cu_seqlens_q[problem.batch], count = (problem.q_len - first) * heads;
  clear_tail(p.out, first, problem.q_len, heads, problem.head_dim);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    static_cast<float*>(p.lse)[i % heads * p.rows.head + first + i / heads] = -INFINITY;
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_tile = 0;
}

template <class Element>
void launch_row_statistics(const BwdParams& p, cudaStream_t stream) {
  const Problem& problem = p.problem;
  const int64_t count = int64_t{problem.heads} * problem.q_len * (problem.cu_seqlens_q ? 1 : problem.batch);
  if (count == 0) return;
  const auto launch = [&](auto kernel, int lanes) {
    const int64_t grid = (count * lanes + kThreads - 1) / kThreads;
    kernel<<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(p, count);
    PLAB_CHECK_LAUNCH();
  };
  if (problem.head_dim <= 64)
    launch(row_statistics_kernel<Element, 8>, 8);
  else if (problem.head_dim <= 128)
    launch(row_statistics_kernel<Element, 16>, 16);
  else
    launch(row_statistics_kernel<Element, 32>, 32);
}

constexpr int kTailBlocks = 64;

}  // namespace

void launch_bwd_prepare(const BwdParams& p, cudaStream_t stream) {
  if (p.problem.element == ElementType::kBFloat16)
    launch_row_statistics<__nv_bfloat16>(p, stream);
  else
    launch_row_statistics<__half>(p, stream);
  if (p.dsink == nullptr || p.problem.heads == 0) return;
  sink_gradient_kernel<<<static_cast<unsigned>(p.problem.heads), kThreads, 0, stream>>>(p);
  PLAB_CHECK_LAUNCH();
}

void launch_clear_tail(const View& view, const int32_t* end, int64_t rows, int heads, int dim,
                       cudaStream_t stream) {
  clear_tail_kernel<<<kTailBlocks, kThreads, 0, stream>>>(view, end, rows, heads, dim);
  PLAB_CHECK_LAUNCH();
}

void launch_fwd_prepare(const FwdParams& params, cudaStream_t stream) {
  fwd_prepare_kernel<<<kTailBlocks, kThreads, 0, stream>>>(params);
  PLAB_CHECK_LAUNCH();
}

}  // namespace plab::ops::attention
