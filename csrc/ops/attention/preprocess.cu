// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/vec.cuh"
#include "ops/attention/key_cache.cuh"
#include "ops/attention/plan.cuh"
#include "ops/attention/preprocess.cuh"
#include "ops/attention/softmax.cuh"
#include "ops/attention/tile_scheduler.cuh"

namespace plab::ops::attention {
namespace {

constexpr int kThreads = 128;

// row_statistics: delta = rowsum(dO O) - dLSE and LSE in units of log2, computed once before the backward.
// Mapping   kLanes lanes per row, 16 bytes each; rows run over (batch, head, row).
// Bytes     B H Sq (4 D + 16)        Flops  2 B H Sq D
// Roof      memory, 2 to 4 % of the backward at Sq = 2048
// Contract  attention.h
template <class Element, int kLanes>
__global__ void __launch_bounds__(kThreads)
    row_statistics_kernel(const __grid_constant__ BwdParams p, int64_t count) {
  ptx::launch_dependents();
  const int64_t index = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kLanes;
  const int lane = int(threadIdx.x) % kLanes;
  if (index >= count) return;
  const Problem& problem = p.problem;
  const int64_t row = index % problem.q_len, group = index / problem.q_len;
  const int head = int(group % problem.heads), batch = int(group / problem.heads);
  float sum = 0.f;
  if (lane * 8 < problem.head_dim_v) {
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
  const bool empty = lse == -INFINITY;  // the row sees nothing: the gradient of its LSE has no effect
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

// The same of the forward's results, and their LSE becomes -inf.
__device__ void clear_results(const FwdParams& p) {
  const Problem& problem = p.problem;
  const int heads = problem.heads;
  const int64_t first = problem.cu_seqlens_q[problem.batch], count = (problem.q_len - first) * heads;
  clear_tail(p.out, first, problem.q_len, heads, problem.head_dim_v);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    static_cast<float*>(p.lse)[i % heads * p.rows.head + first + i / heads] = -INFINITY;
}

// What the forward finds done: rows that no sequence owns, new keys in the cache, the tile counter.
__global__ void __launch_bounds__(kThreads) fwd_prepare_kernel(const __grid_constant__ FwdParams p) {
  ptx::launch_dependents();  // the forward waits for this kernel's end where it counts or reads the cache
  if (p.problem.cu_seqlens_q != nullptr) clear_results(p);
  if (p.cache.new_k.data != nullptr)
    append_keys(p, int64_t{blockIdx.x} * kThreads + threadIdx.x, int64_t{gridDim.x} * kThreads);
  if (p.tile_counter != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *p.tile_counter = 0;
}

constexpr int kTailBlocks = 64;

int64_t statistics_rows(const Problem& p) {
  return int64_t{p.heads} * p.q_len * (p.cu_seqlens_q ? 1 : p.batch);
}

template <class Element, int kLanes>
void launch_row_statistics(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_kernel(row_statistics_kernel<Element, kLanes>, how, stream, params, statistics_rows(params.problem));
}

template <class Element>
KernelLaunch<BwdParams> row_statistics(const Problem& p) {
  const auto with_lanes = [&](auto launch, int lanes) {
    return KernelLaunch<BwdParams>{launch, (statistics_rows(p) * lanes + kThreads - 1) / kThreads, kThreads,
                                   0};
  };
  if (p.head_dim_v <= 64) return with_lanes(launch_row_statistics<Element, 8>, 8);
  if (p.head_dim_v <= 128) return with_lanes(launch_row_statistics<Element, 16>, 16);
  return with_lanes(launch_row_statistics<Element, 32>, 32);
}

void launch_sink_gradient(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  launch_kernel(sink_gradient_kernel, how, stream, params);
}

void launch_fwd_tail(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  launch_kernel(fwd_prepare_kernel, how, stream, params);
}

template <View BwdParams::*kGradient, bool kQueries, int Problem::*kColumns>
void launch_bwd_tail(const KernelLaunch<BwdParams>& how, const BwdParams& params, cudaStream_t stream) {
  const Problem& p = params.problem;
  const int32_t* const end = (kQueries ? p.cu_seqlens_q : p.cu_seqlens_k) + p.batch;
  launch_kernel(clear_tail_kernel, how, stream, params.*kGradient, end, kQueries ? p.q_len : p.k_len,
                kQueries ? p.heads : p.kv_heads, p.*kColumns);
}

}  // namespace

BwdPlan plan_row_statistics(const BwdParams& params) {
  const Problem& p = params.problem;
  BwdPlan plan;
  plan.workspace.row_statistics = true;
  plan.add(p.element == ElementType::kBFloat16 ? row_statistics<__nv_bfloat16>(p)
                                               : row_statistics<__half>(p));
  if (params.dsink != nullptr) plan.add({launch_sink_gradient, p.heads, kThreads, 0});
  return plan;
}

FwdPlan plan_tails(const FwdParams& params) {
  const Problem& p = params.problem;
  FwdPlan plan;
  if (p.cu_seqlens_q == nullptr && params.cache.lengths == nullptr && params.mask.counts == nullptr)
    return plan;
  plan.workspace.tile_counter = p.cu_seqlens_q != nullptr;
  const int64_t pieces = added_rows(params) * p.kv_heads * (p.head_dim / 8);
  const int64_t blocks =
      cuda::smaller<int64_t>(cuda::ceil_div<int64_t>(pieces, kThreads), 16 * cuda::sm_count());
  plan.add({launch_fwd_tail, cuda::larger<int64_t>(blocks, kTailBlocks), kThreads, 0});
  return plan;
}

BwdPlan plan_tails(const BwdParams& params) {
  BwdPlan plan;
  if (params.problem.cu_seqlens_q == nullptr) return plan;
  plan.add({launch_bwd_tail<&BwdParams::dq, true, &Problem::head_dim>, kTailBlocks, kThreads, 0});
  plan.add({launch_bwd_tail<&BwdParams::dk, false, &Problem::head_dim>, kTailBlocks, kThreads, 0});
  plan.add({launch_bwd_tail<&BwdParams::dv, false, &Problem::head_dim_v>, kTailBlocks, kThreads, 0});
  return plan;
}

}  // namespace plab::ops::attention
