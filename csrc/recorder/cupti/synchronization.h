// SPDX-License-Identifier: Apache-2.0
// Rows about waits, from the calls that wait.
//
// CUPTI has records for them (CUPTI_ACTIVITY_KIND_SYNCHRONIZATION). But once that kind was enabled, every CUDA
// runtime call is slower until the end of the process or cuptiFinalize: on CUDA 13.0 a launch by 1.5 us, and even
// cudaGetDevice by 0.2 us. The callback of the call knows everything in the record except the event's number.
#pragma once

#include <cstdint>
#include <string>

#include "recorder/cupti/abi.h"
#include "recorder/cupti/library.h"

namespace plab::recorder::synchronization {

// CUPTI's and nsys' numbers.
enum class Wait : uint8_t { kNone = 0, kEvent = 1, kStreamForEvent = 2, kStream = 3, kContext = 4 };

Wait classify(const std::string& name);

// Forgets all calls; `functions` must outlive the recordings.
void start(const cupti::Functions* functions);
void add(cupti::Domain domain, uint32_t cbid, const std::string& name);

// CUPTI's number of the stream that the call names as its first argument; spool::kNone if it names none.
// Thread: any, in the callback of the call.
uint32_t stream_of(cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) noexcept;

}  // namespace plab::recorder::synchronization
