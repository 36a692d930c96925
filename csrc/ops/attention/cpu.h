// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

namespace plab::ops::attention {

// In cpu_path.h, half a minute of compiling: each element type has a translation unit of its own, cpu_*.cpp.
template <class T>
void fwd_cpu(const FwdParams& p);
template <class T>
void bwd_cpu(const BwdParams& p);

}  // namespace plab::ops::attention
