// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/attention.h"

// The CPU path: any ElementType; sums in double where the tensors are, in float otherwise.
namespace plab::ops::attention::cpu {

void fwd(const FwdParams& params);
void bwd(const BwdParams& params);

// One translation unit per element type (float32.cpp, ...), as each takes half a minute to compile.
template <class T>
void fwd_element(const FwdParams& params);
template <class T>
void bwd_element(const BwdParams& params);

}  // namespace plab::ops::attention::cpu
