// SPDX-License-Identifier: Apache-2.0
// Loops on torch's own threads, so that torch.set_num_threads holds for us too.
#pragma once

#include <type_traits>

#include "torch_abi/abi.h"

namespace plab::torch_abi {

// Calls body(begin, end) on pieces of [0, count) of at least `grain` items each. The body must not throw.
template <class Body>
void parallel_for(int64_t count, int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  if (count <= 0) return;
  PLAB_TORCH(
      torch_parallel_for, 0, count, grain > 0 ? grain : 1,
      [](int64_t begin, int64_t end, void* context) { (*static_cast<Plain*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace plab::torch_abi
