// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/cpu_path.h"

namespace plab::ops::attention {
template void fwd_cpu<float>(const FwdParams& p);
template void bwd_cpu<float>(const BwdParams& p);
}  // namespace plab::ops::attention
