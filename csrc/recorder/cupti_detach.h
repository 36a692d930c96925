// SPDX-License-Identifier: Apache-2.0
// CUPTI out of the process: what it does to every CUDA call outlasts the last activity kind and the
// subscription, and ends with cuptiFinalize alone.
#pragma once

#include "recorder/cupti_abi.h"
#include "recorder/cupti_library.h"

namespace plab::recorder::cupti_detach {

// Takes CUPTI out, with its subscriptions and all that is switched on. What it still holds must have been
// flushed and read: names of kernels are its memory. False: it stays as it is (a CUPTI that cannot do so).
bool run(const cupti::Functions& functions, cupti::SubscriberHandle subscriber) noexcept;

// Thread: any, inside of a CUDA call. True: that was run()'s own call, and nobody else's business.
bool on_call(cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) noexcept;

}  // namespace plab::recorder::cupti_detach
