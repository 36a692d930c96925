// SPDX-License-Identifier: Apache-2.0
// The CUDA calls that get a row, a Python stack and an autograd link, and the callback that records them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/cupti/abi.h"
#include "recorder/cupti/launch_ring.h"
#include "recorder/cupti/library.h"

namespace plab::recorder::launch_callbacks {

// What a traced call does. Every call that makes the GPU work, waits for it or changes its memory counts.
enum class CallClass { kNone, kLaunch, kGraph, kCopy, kSet, kSync, kMemory, kWait };

// By its name (trace/cuda_calls.h).
CallClass classify(const std::string& name);

struct TracedCall {
  cupti::Domain domain;
  uint32_t cbid;
  std::string name;
};

// Every call of the loaded library that needs a callback.
std::vector<TracedCall> traced_calls(const cupti::Functions& functions);

// Starts accepting events into `rings`, which must live as long as the process (a call may be in flight).
void arm(LaunchRings* rings, bool python_stacks) noexcept;
void disarm() noexcept;
// Accepts events again after disarm(), as the same recording.
void rearm(LaunchRings* rings, bool python_stacks) noexcept;

// CUPTI's callback; `userdata` is a GraphNodes. Thread: any thread inside a CUDA call, usually without the
// GIL; must not call CUDA, take locks that others hold across CUDA calls, or throw.
void on_call(void* userdata, cupti::Domain domain, uint32_t cbid, const void* data);

// True on a thread that is inside a traced call right now.
bool inside_call() noexcept;

// The correlation id of the traced call that the calling thread is in; 0: none.
uint32_t correlation_now() noexcept;

uint64_t errors() noexcept;  // exceptions swallowed on the callback path since arm()

}  // namespace plab::recorder::launch_callbacks
