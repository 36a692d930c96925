// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu/amx_kernels.h"
#include "ops/attention/cpu/tile_scheduler.h"

namespace plab::ops::attention::cpu {
template void fwd_element<BFloat16>(const FwdParams& p);
template void bwd_element<BFloat16>(const BwdParams& p);
}  // namespace plab::ops::attention::cpu
