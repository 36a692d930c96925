// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel for a problem and launches it: portable kernels for rows that fit a block, packed or not
// (portable/split.h), clusters of blocks for longer rows where the GPU has clusters, portable kernels for everything
// else.
#include "cuda/launch.h"
#include "ops/device_types.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/epilogue.cuh"
#include "ops/layer_norm_gelu/portable/launch.cuh"
#ifdef PLAB_HAS_SM90A
#include "ops/layer_norm_gelu/sm90/sm90.h"
#endif

namespace plab::ops::layer_norm_gelu {
namespace {

Plan plan_forward(const ForwardParams& params) {
  if (params.rows == 0) return {};
  return dispatch_device(params.element, [&]<class Element>(Tag<Element>) {
    Plan plan;
    if (portable::is_packable<Element>(params) &&
        portable::is_packed_forward<Element>(params.rows, params.cols, portable::is_aligned<Element>(params)))
      plan = portable::plan_forward_packed(params);
#ifdef PLAB_HAS_SM90A
    if (plan.kernel == nullptr &&
        portable::is_shifted_forward<Element>(params.cols, portable::is_aligned<Element>(params)))
      plan = sm90::plan_forward_shifted<Element>(params);
#endif
    if (plan.kernel == nullptr) plan = portable::plan_forward<Element>(params);
#ifdef PLAB_HAS_SM90A
    if (plan.kernel == nullptr) plan = sm90::plan_forward<Element>(params);
    if (plan.kernel == nullptr) plan = sm90::plan_forward_shifted<Element>(params);
#endif
    return plan.kernel != nullptr ? plan : portable::plan_forward_long<Element>(params);
  });
}

/// dweight and dbias from the blocks' sums; zeros if there are none.
void launch_add_partials(const BackwardParams& params, int64_t partial_rows, cudaStream_t stream) {
  dispatch_device(params.element, [&]<class Element>(Tag<Element>) {
    const auto add = [&]<int kColumns>(int threads) {
      cudaLaunchAttribute early{};  // programmatic dependent launch: overlaps with the kernel above
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(static_cast<unsigned>(cuda::ceil_div<int64_t>(2 * params.cols, kColumns)));
      config.blockDim = dim3(static_cast<unsigned>(threads));
      config.stream = stream;
      config.attrs = &early;
      config.numAttrs = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 ? 1 : 0;
      PLAB_CUDA_CHECK(cudaLaunchKernelEx(&config, add_partials_kernel<Element, kColumns>,
                                         static_cast<const float*>(params.partial), partial_rows, params.cols,
                                         static_cast<Element*>(params.dweight),
                                         static_cast<Element*>(params.dbias)));
    };
    if (params.cols <= kFewColumns) {
      add.template operator()<8>(1024);
    } else {
      add.template operator()<32>(params.cols <= kManyColumns ? 1024 : 256);
    }
  });
}

}  // namespace

void launch_forward(const ForwardParams& params, cudaStream_t stream) {
  const Plan plan = plan_forward(params);
  if (plan.kernel != nullptr) portable::launch(plan, params, stream);
}

Plan plan_backward(const BackwardParams& params) {
  if (params.rows == 0) return {};
  return dispatch_device(params.element, [&]<class Element>(Tag<Element>) {
    Plan plan;
#ifdef PLAB_HAS_SM90A
    plan = sm90::plan_backward<Element>(params);
    if (plan.kernel != nullptr) return plan;
#endif
    if (portable::is_packable<Element>(params) &&
        portable::is_packed_backward<Element>(params.rows, params.cols,
                                              portable::is_aligned<Element>(params)))
      plan = portable::plan_backward_packed(params);
#ifdef PLAB_HAS_SM90A
    if (plan.kernel == nullptr && portable::is_shifted_backward<Element>(
                                      params.rows, params.cols, portable::is_aligned<Element>(params)))
      plan = sm90::plan_backward_shifted<Element>(params);
#endif
    if (plan.kernel == nullptr) plan = portable::plan_backward<Element>(params);
#ifdef PLAB_HAS_SM90A
    if (plan.kernel == nullptr) plan = sm90::plan_backward_long<Element>(params);
    if (plan.kernel == nullptr) plan = sm90::plan_backward_shifted<Element>(params);
#endif
    return plan.kernel != nullptr ? plan : portable::plan_backward_long<Element>(params);
  });
}

void launch_backward(const Plan& plan, const BackwardParams& params, cudaStream_t stream) {
  if (plan.kernel != nullptr) portable::launch(plan, params, stream);
  if (plan.sums_kernel != nullptr) {
    Plan sums;
    sums.kernel = plan.sums_kernel;
    sums.blocks = plan.sums_blocks;
    sums.threads = plan.sums_threads;
    portable::launch(sums, params, stream);
  }
  if (plan.workspace_rows > 0 || params.rows == 0) launch_add_partials(params, plan.workspace_rows, stream);
}

}  // namespace plab::ops::layer_norm_gelu
