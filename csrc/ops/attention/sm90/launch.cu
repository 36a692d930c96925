// SPDX-License-Identifier: Apache-2.0
#include "cuda/ptx/dependent_launch.cuh"
#include "ops/attention/plan.cuh"
#include "ops/attention/preprocess.cuh"
#include "ops/attention/sm90/launch.h"

namespace plab::ops::attention::sm90 {
namespace {

// TMA strides must be below 2^40 bytes.
bool tma_walks(const Problem& p, const View& view, int64_t rows, int64_t heads) {
  const auto walks = [](int64_t size, int64_t stride) { return size <= 1 || stride < int64_t{1} << 39; };
  return walks(rows, view.row) && walks(heads, view.head) && walks(p.cu_seqlens_q ? 1 : p.batch, view.batch);
}

bool tma_walks_keys(const Problem& p, const View& k, const View& v) {
  return tma_walks(p, k, p.k_len, p.kv_heads) && tma_walks(p, v, p.k_len, p.kv_heads);
}

__global__ void clear_counter_kernel(int32_t* counter) {
  cuda::ptx::launch_dependents();  // the forward waits for the end of this kernel only before it counts
  *counter = 0;
}

void launch_clear_counter(const KernelLaunch<FwdParams>& how, const FwdParams& params, cudaStream_t stream) {
  launch_kernel(clear_counter_kernel, how, stream, params.tile_counter);
}

}  // namespace

std::optional<FwdPlan> plan_fwd(const FwdParams& params) {
  const Problem& p = params.problem;
  if (is_decode(p)) return plan_decode(p);
  if (p.k_len == 0 || !tma_walks(p, params.q, p.q_len, p.heads) || !tma_walks_keys(p, params.k, params.v))
    return std::nullopt;
  const int dim = p.widest();
  FwdPlan plan = dim <= 64    ? plan_fwd_d64(params)
                 : dim <= 96  ? plan_fwd_d96(params)
                 : dim <= 128 ? plan_fwd_d128(params)
                 : dim <= 192 ? plan_fwd_d192(params)
                              : plan_fwd_d256(params);
  if (!plan.workspace.tile_counter || p.cu_seqlens_q != nullptr) return plan;  // plan_tails clears it
  FwdPlan with_counter;
  with_counter.add({launch_clear_counter, 1, 1, 0});
  with_counter.append(plan);
  return with_counter;
}

// A sequence of few rows would leave most of a forward's tile empty, and the decode kernel reads its keys again for
// each 16 rows of a head: at 16 rows both take about as long.
FwdPlan plan_fwd_with_cache(const FwdParams& params) {
  const Problem& p = params.problem;
  Problem of_cache = p;  // as TMA sees the cache
  of_cache.batch = params.cache.page_count, of_cache.k_len = params.cache.page_size;
  of_cache.cu_seqlens_q = nullptr;
  const bool has_long = p.q_len > kDecodeRows && tma_walks(p, params.q, p.q_len, p.heads) &&
                        tma_walks_keys(of_cache, params.k, params.v);
  if (p.cu_seqlens_q == nullptr && !has_long) return plan_decode_with_cache(params, INT_MAX);
  FwdPlan plan = plan_tails(params);
  if (has_long) plan.append(plan_fwd_cached(p));
  if (p.cu_seqlens_q != nullptr)
    plan.append(plan_decode_with_cache(params, has_long ? kDecodeRows : INT_MAX));
  return plan;
}

std::optional<BwdPlan> plan_bwd(const BwdParams& params) {
  const Problem& p = params.problem;
  if (!(p.scale > 0) || p.k_len == 0 || p.q_len == 0 || p.heads == 0 ||
      !tma_walks(p, params.q, p.q_len, p.heads) || !tma_walks(p, params.dout, p.q_len, p.heads) ||
      !tma_walks_keys(p, params.k, params.v))
    return std::nullopt;
  // Up to head_dim 128 the backward's own preprocessing computes the row statistics. The sink's gradient needs
  // them too.
  BwdPlan plan;
  const int dim = p.widest();
  if (dim > 128 || params.dsink != nullptr) plan = plan_row_statistics(params);
  plan.append(dim <= 64    ? plan_bwd_d64(params)
              : dim <= 128 ? plan_bwd_d128(params)
              : dim <= 192 ? plan_bwd_d192(params)
                           : plan_bwd_d256(params));
  return plan;
}

}  // namespace plab::ops::attention::sm90
