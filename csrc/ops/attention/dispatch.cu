// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string_view>

#include "ops/attention/bwd_sm80.cuh"
#include "ops/attention/bwd_sm80_sum.cuh"
#include "ops/attention/fwd_sm80.cuh"
#include "ops/attention/prepare.cuh"
#include "ops/attention/sm90/sm90.h"

namespace plab::ops::attention {
namespace {

void check_device() {
  const int major = cuda::device_attribute<cudaDevAttrComputeCapabilityMajor>();
  const int minor = cuda::device_attribute<cudaDevAttrComputeCapabilityMinor>();
  if (major < 8)
    throw Error("flash_attention needs a GPU of compute capability 8.0 or newer; this one has " +
                std::to_string(major) + "." + std::to_string(minor));
}

#ifdef PLAB_HAS_SM90A
// The Hopper path runs on compute capability 9.0 exactly, and only where the build had its target. A process
// whose environment says PROFILING_LAB_ATTENTION_PATH=sm80 takes the portable path there too: to test it, to
// time it, and to tell whether a wrong result comes from one path or from both.
bool has_hopper_path() {
  static const bool portable = [] {
    const char* path = std::getenv("PROFILING_LAB_ATTENTION_PATH");
    return path != nullptr && std::string_view(path) == "sm80";
  }();
  return !portable && cuda::device_attribute<cudaDevAttrComputeCapabilityMajor>() == 9 &&
         cuda::device_attribute<cudaDevAttrComputeCapabilityMinor>() == 0;
}

// Tensors that TMA cannot walk, and scales that are not positive, take the portable path there too.
template <class Params>
bool takes_hopper_path(const Params& p) {
  return has_hopper_path() && sm90::takes(p);
}
#endif

}  // namespace

void launch_attention_fwd_sm80(const FwdParams& p, cudaStream_t stream) {
  if (p.problem.head_dim <= 64)
    launch_fwd_sm80_d64(p, stream);
  else if (p.problem.head_dim <= 128)
    launch_fwd_sm80_d128(p, stream);
  else
    launch_fwd_sm80_d256(p, stream);
}

void launch_attention_bwd_sm80(const BwdParams& p, cudaStream_t stream) {
  if (p.problem.head_dim <= 64)
    launch_bwd_sm80_d64(p, stream);
  else if (p.problem.head_dim <= 128)
    launch_bwd_sm80_d128(p, stream);
  else
    launch_bwd_sm80_d256(p, stream);
}

bool attention_fwd_counts(const FwdParams& p) {
  if (p.problem.cu_seqlens_q != nullptr) return true;
#ifdef PLAB_HAS_SM90A
  if (p.problem.batch > 0 && takes_hopper_path(p)) return sm90::counts_tiles(p.problem);
#endif
  return false;
}

BwdNeeds attention_bwd_needs(const BwdParams& p) {
#ifdef PLAB_HAS_SM90A
  if (p.problem.batch > 0 && takes_hopper_path(p))
    return {sm90::dq_sum_floats(p), !sm90::makes_statistics(p)};
#endif
  // The portable path's fastest backward adds to dQ in whatever order its blocks finish.
  return {p.deterministic ? 0 : dq_sum_floats_sm80(p.problem), true};
}

void launch_attention_fwd(const FwdParams& p, cudaStream_t stream) {
  check_device();
  const Problem& problem = p.problem;
  if (problem.cu_seqlens_q != nullptr) launch_fwd_prepare(p, stream);
  if (problem.batch == 0) return;
#ifdef PLAB_HAS_SM90A
  if (takes_hopper_path(p)) return sm90::launch_fwd(p, stream);
#endif
  launch_attention_fwd_sm80(p, stream);
}

void launch_attention_bwd(const BwdParams& p, cudaStream_t stream) {
  check_device();
  const Problem& problem = p.problem;
  if (const int32_t* cu = problem.cu_seqlens_q; cu != nullptr) {
    launch_clear_tail(p.dq, cu + problem.batch, problem.q_len, problem.heads, problem.head_dim, stream);
    cu = problem.cu_seqlens_k;
    launch_clear_tail(p.dk, cu + problem.batch, problem.k_len, problem.kv_heads, problem.head_dim, stream);
    launch_clear_tail(p.dv, cu + problem.batch, problem.k_len, problem.kv_heads, problem.head_dim, stream);
  }
#ifdef PLAB_HAS_SM90A
  if (problem.batch > 0 && takes_hopper_path(p)) {
    if (!sm90::makes_statistics(p)) launch_bwd_prepare(p, stream);
    return sm90::launch_bwd(p, stream);
  }
#endif
  launch_bwd_prepare(p, stream);
  if (problem.batch > 0) launch_attention_bwd_sm80(p, stream);
}

}  // namespace plab::ops::attention
