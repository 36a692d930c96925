// SPDX-License-Identifier: Apache-2.0
// Is a CUDA graph being captured? A wait for the whole device on any thread breaks the capture, so the recorder
// checks before it waits. CUDA itself reports this only for streams whose handle is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/cupti/abi.h"
#include "recorder/cupti/library.h"

namespace plab::recorder::stream_captures {

struct Call {
  cupti::Domain domain;
  uint32_t cbid;
};

// The calls that begin and end captures; on_call() has to see them from now on, in pauses too.
std::vector<Call> start(const cupti::Functions& functions);

// Thread: any, inside of a CUDA call. True: it was such a call and needs no further handling.
bool on_call(cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) noexcept;

// Captures that have begun and not ended since start().
int under_way() noexcept;

// Captures that have begun since start().
uint64_t begun() noexcept;

}  // namespace plab::recorder::stream_captures
