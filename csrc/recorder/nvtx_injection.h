// SPDX-License-Identifier: Apache-2.0
// NVTX ranges without a profiler around the process: this module is the injection library itself.
//
// Every library that uses NVTX looks at NVTX_INJECTION64_PATH at its first NVTX call, loads that file and
// asks for InitializeInjectionNvtx2. The recorder points the variable at its own module. A library whose
// first call came before cannot be reached any more; count of attached libraries tells.
#pragma once

#include <cstdint>

#include "trace/spool.h"

namespace plab::recorder::nvtx_injection {

void start() noexcept;
// Closes what is open (rows without an end), hands everything over and stops recording.
void stop(trace::spool::Writer& writer);
// Thread: the consumer.
void drain(trace::spool::Writer& writer);
void after_fork_child() noexcept;

uint32_t attached_libraries() noexcept;  // since the process began
uint64_t ranges() noexcept;              // handed to the writer since start()

}  // namespace plab::recorder::nvtx_injection
