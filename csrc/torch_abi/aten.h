// SPDX-License-Identifier: Apache-2.0
// The few operators of torch itself that our ops call, through the dispatcher (so that a profile shows them).
#pragma once

#include "torch_abi/tensor.h"

namespace plab::torch_abi {

// The tensor itself if it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& tensor);

// A copy in fresh, aligned memory; dense layouts keep their order of strides.
Tensor clone(const Tensor& tensor);

// out = a @ b for matrices. The out form is used on purpose: autocast has no rule for it, so the dtypes
// do not change.
void mm_out(Tensor& out, const Tensor& a, const Tensor& b);

// A new contiguous a @ b.
Tensor mm(const Tensor& a, const Tensor& b);

// The matrix with its two dimensions swapped; no copy.
Tensor transposed(const Tensor& matrix);

}  // namespace plab::torch_abi
