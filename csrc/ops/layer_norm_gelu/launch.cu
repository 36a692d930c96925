// SPDX-License-Identifier: Apache-2.0
// The two entries, and the sum of the blocks' sums.
#include "ops/layer_norm_gelu/backward.cuh"
#include "ops/layer_norm_gelu/by_element.h"
#include "ops/layer_norm_gelu/launch_plan.cuh"
#include "ops/layer_norm_gelu/long_rows.h"
#include "ops/layer_norm_gelu/wide_rows.h"

namespace plab::ops::layer_norm_gelu {
namespace {

/// Rows of partial sums that the launch fills, or 0; without `launch` only their number is found out.
int64_t launch_rows(const BackwardParams& params, bool launch, cudaStream_t stream) {
  if (params.rows == 0) return 0;
  int64_t partial_rows = 0;
  dispatch_device(params.element, [&]<class Element>(Tag<Element>) {
    partial_rows = launch_backward_of<Element>(params, launch, stream);
  });
  return partial_rows;
}

}  // namespace

void launch_forward(const ForwardParams& params, cudaStream_t stream) {
  if (params.rows == 0) return;
  dispatch_device(params.element,
                  [&]<class Element>(Tag<Element>) { launch_forward_of<Element>(params, stream); });
}

int64_t backward_partial_rows_cuda(const BackwardParams& params) {
  return launch_backward_few(params, false, nullptr) ? 0 : launch_rows(params, false, nullptr);
}

void launch_backward(const BackwardParams& params, cudaStream_t stream) {
  if (launch_backward_few(params, true, stream)) return;
  const int64_t partial_rows = launch_rows(params, true, stream);
  if (partial_rows == 0 && params.rows > 0) return;  // dweight and dbias are written
  // Without rows this writes the zeros that an empty sum is.
  dispatch_element_and_form(params.element, params.form, [&]<class Element, GeluForm>() {
    const auto add = [&]<int kColumns>(int threads) {
      cudaLaunchAttribute early{};  // on its way while the kernel above still runs
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = dim3(static_cast<unsigned>(cuda::ceil_div<int64_t>(2 * params.cols, kColumns)));
      config.blockDim = dim3(static_cast<unsigned>(threads));
      config.stream = stream;
      config.attrs = &early;
      config.numAttrs = cuda::device_attribute<cudaDevAttrComputeCapabilityMajor>() >= 9 ? 1 : 0;
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

}  // namespace plab::ops::layer_norm_gelu
