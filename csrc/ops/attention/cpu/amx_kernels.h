// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/cpu/amx.h"
#include "ops/attention/cpu/isa.h"

namespace plab::ops::attention::cpu {

#ifdef PLAB_AMX
// bfloat16 on CPUs with matrix tiles: the two that multiply.
struct AmxKernels : Kernels<BFloat16, float> {
  using Plain = Kernels<BFloat16, float>;
  using Tiled = Task<BFloat16, float, Amx>;
  static int64_t fwd_scratch(int64_t dim) {
    return tiles() ? Tiled::fwd_scratch(dim) : Plain::fwd_scratch(dim);
  }
  static int64_t bwd_scratch(int64_t dim, int64_t keys) {
    return tiles() ? Tiled::bwd_scratch(dim, keys) : Plain::bwd_scratch(dim, keys);
  }
  PLAB_AMX static void fwd_tiles(const FwdParams& p, const Sequence& s, int64_t head, int64_t block,
                                 Scratch<float>& scratch) {
    const AmxTiles tiles;
    Tiled::fwd(p, s, head, block, scratch);
  }
  PLAB_AMX static void bwd_tiles(const BwdParams& p, const Sequence& s, int64_t head, int64_t begin,
                                 int64_t end, float* partial, int64_t partial_head, Scratch<float>& scratch) {
    const AmxTiles tiles;
    Tiled::bwd(p, s, head, begin, end, partial, partial_head, scratch);
  }
  static bool tiles() {
    static const bool answer = wanted().tiles && has_amx();
    return answer;
  }
  static auto fwd() { return tiles() ? fwd_tiles : Plain::fwd(); }
  static auto bwd() { return tiles() ? bwd_tiles : Plain::bwd(); }
};
using KernelsOfBFloat16 = AmxKernels;
#else
using KernelsOfBFloat16 = Kernels<BFloat16, float>;
#endif

template <>
struct KernelsFor<BFloat16> {
  using Type = KernelsOfBFloat16;
};

}  // namespace plab::ops::attention::cpu
