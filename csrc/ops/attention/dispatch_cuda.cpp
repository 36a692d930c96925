// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <optional>
#include <string_view>

#include "cuda/launch.h"
#include "ops/attention/attention.h"
#include "ops/attention/preprocess.cuh"
#include "ops/attention/sm80/launch.h"
#ifdef PLAB_HAS_SM90A
#include "ops/attention/sm90/launch.h"
#endif

// Which CUDA path a problem takes.
namespace plab::ops::attention {
namespace {

void check_device() {
  const int major = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor);
  const int minor = cuda::device_attribute(cudaDevAttrComputeCapabilityMinor);
  if (major < 8)
    cuda::fail("flash_attention needs a GPU of compute capability 8.0 or newer; this one has %d.%d", major,
               minor);
}

#ifdef PLAB_HAS_SM90A
// The sm90 path runs on compute capability 9.0 exactly, and only if it was compiled for sm_90a. With
// PROFILING_LAB_ATTENTION_PATH=sm80 in the environment the portable path runs there too: to test it, to time it,
// and to see whether a wrong result comes from one path or from both.
bool has_sm90_path() {
  static const bool portable = [] {
    const char* path = std::getenv("PROFILING_LAB_ATTENTION_PATH");
    return path != nullptr && std::string_view(path) == "sm80";
  }();
  return !portable && cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         cuda::device_attribute(cudaDevAttrComputeCapabilityMinor) == 0;
}
#endif

FwdPlan plan_path(const FwdParams& params) {
#ifdef PLAB_HAS_SM90A
  if (has_sm90_path())
    if (const std::optional<FwdPlan> plan = sm90::plan_fwd(params)) return *plan;
#endif
  return sm80::plan_fwd(params);
}

BwdPlan plan_path(const BwdParams& params) {
#ifdef PLAB_HAS_SM90A
  if (has_sm90_path())
    if (const std::optional<BwdPlan> plan = sm90::plan_bwd(params)) return *plan;
#endif
  return sm80::plan_bwd(params);
}

}  // namespace

FwdPlan plan_fwd(const FwdParams& params) {
  check_device();
  FwdPlan plan = plan_tails(params);
  if (params.problem.batch > 0) plan.append(plan_path(params));
  return plan;
}

FwdPlan plan_fwd_with_cache(const FwdParams& params) {
#ifdef PLAB_HAS_SM90A
  if (has_sm90_path()) return sm90::plan_fwd_with_cache(params);
#endif
  cuda::fail("flash_attention_with_cache's kernel needs a GPU of compute capability 9.0, and a build for it");
}

FwdPlan plan_fwd_with_mask(const FwdParams& params) {
  FwdPlan plan = plan_tails(params);
#ifdef PLAB_HAS_SM90A
  if (has_sm90_path()) {
    plan.append(sm90::plan_fwd_cached(params.problem));
    return plan;
  }
#endif
  cuda::fail(
      "flash_attention's kernel for block masks needs a GPU of compute capability 9.0, and a build for it");
}

BwdPlan plan_bwd(const BwdParams& params) {
  check_device();
  BwdPlan plan = plan_tails(params);
  plan.append(params.problem.batch > 0 ? plan_path(params) : plan_row_statistics(params));
  return plan;
}

}  // namespace plab::ops::attention
