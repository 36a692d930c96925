// SPDX-License-Identifier: Apache-2.0
// Rows of a block that do not divide evenly among its threads, and start anywhere. Compiled once per element type,
// like forward.cu.
#include "ops/layer_norm_gelu/portable/shifted_launch.cuh"

namespace plab::ops::layer_norm_gelu::portable {
namespace {

/// The shape that occupies most of an SM: a thread has as many columns as it can, or fewer if blocks then fit better.
template <class Config>
ShiftedShape block_shape(int64_t cols, int resident_threads) {
  const int64_t vecs = shifted_vecs(cols, Config::Tile::kVecSize);
  ShiftedShape best;
  int64_t most = 0;
  for (int each = Config::Tile::kVecs; each > 0; --each) {
    const ShiftedShape shape = shifted_shape(vecs, 1, each);
    if (shape.threads > kMaxThreadsPerRow) break;
    const int64_t vecs_in_work = resident_threads / shape.threads * vecs;
    if (vecs_in_work > most) best = shape, most = vecs_in_work;
  }
  return best;
}

template <class Config, auto kKernel, class Params>
Plan plan(const Params& params, int resident_threads, int waves) {
  const ShiftedShape shape = block_shape<Config>(params.cols, resident_threads);
  if (shape.threads == 0) return {};
  return plan_shifted<Config, kKernel>(params.rows, params.cols, shape, waves);
}

}  // namespace

template <class Element>
Plan plan_forward_shifted(const ForwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    const auto with = [&]<bool kResidual>() {
      using Config = ShiftedForward<Element, cuda::BlockPairSum, kForm, kResidual>;
      return plan<Config, forward_kernel<Config>>(params, Config::kMaxBlock * Config::kMinBlocks, 4);
    };
    return params.residual != nullptr ? with.template operator()<true>() : with.template operator()<false>();
  });
}

template <class Element>
Plan plan_backward_shifted(const BackwardParams& params) {
  return dispatch_form(params.form, [&]<GeluForm kForm>() {
    const auto with = [&]<bool kResidual>() {
      using Config = ShiftedBackward<Element, cuda::BlockPairSum, kForm, kResidual>;
      return plan<Config, backward_kernel<Config>>(params, Config::kResidentThreads, 1);
    };
    return params.dsum != nullptr ? with.template operator()<true>() : with.template operator()<false>();
  });
}

template Plan plan_forward_shifted<PLAB_ELEMENT>(const ForwardParams& params);
template Plan plan_backward_shifted<PLAB_ELEMENT>(const BackwardParams& params);

}  // namespace plab::ops::layer_norm_gelu::portable
