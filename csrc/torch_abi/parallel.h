// SPDX-License-Identifier: Apache-2.0
// Loops on torch's own threads, so torch.set_num_threads applies to our ops too.
#pragma once

#include <exception>
#include <mutex>

#include "torch_abi/abi.h"

namespace plab::torch_abi {

// Calls body(begin, end) on pieces of [0, count), on a single thread if there are no more than `grain` items.
// The first exception that a body throws is rethrown here: libtorch's C interface would terminate the
// process.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  struct Context {
    const Body& body;
    std::mutex mutex;
    std::exception_ptr error;
  } context{body, {}, nullptr};
  PLAB_TORCH(
      torch_parallel_for, 0, count, grain > 0 ? grain : 1,
      [](int64_t begin, int64_t end, void* opaque) {
        auto& shared = *static_cast<Context*>(opaque);
        try {
          shared.body(begin, end);
        } catch (...) {
          const std::lock_guard lock(shared.mutex);
          if (!shared.error) shared.error = std::current_exception();
        }
      },
      &context);
  if (context.error) std::rethrow_exception(context.error);
}

}  // namespace plab::torch_abi
