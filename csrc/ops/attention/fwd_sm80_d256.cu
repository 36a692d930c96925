// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/fwd_sm80_pairs.cuh"

namespace plab::ops::attention {
namespace {

template <class Element>
bool try_pairs(const FwdParams& params, cudaStream_t stream) {
  using Config = FwdPairsSm80<Element, 256, 64, 64, 2>;
  if (Config::kSmemBytes > cuda::max_shared_bytes()) return false;  // sm_86 and sm_89
  launch_fwd_sm80<Config>(attention_fwd_pairs_sm80_kernel<Config>, params, stream);
  return true;
}

}  // namespace

void launch_fwd_sm80_d256(const FwdParams& params, cudaStream_t stream) {
  const bool done = params.problem.element == ElementType::kBFloat16
                        ? try_pairs<__nv_bfloat16>(params, stream)
                        : try_pairs<__half>(params, stream);
  if (!done) launch_fwd_sm80_element<256, 64, 64, 2, false>(params, stream);
}

}  // namespace plab::ops::attention
