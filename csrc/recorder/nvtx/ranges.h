// SPDX-License-Identifier: Apache-2.0
// The ranges and marks of a recording: a stack of open ranges per thread and domain, and what is finished.
//
// Nothing here knows how NVTX calls arrive; injection.cpp turns those into the calls below.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "recorder/nvtx/names.h"
#include "recorder/spool/writer.h"

namespace plab::recorder::nvtx_ranges {

struct Event {
  spool::Range range{};
  std::string text;
  std::string data;  // nvtx_payloads::copy
};

// From the recorder.
void start() noexcept;
bool recording() noexcept;
// Thread: the consumer. Hands over what is finished; ranges and marks that `keep`(start_ns, end_ns) refuses
// are dropped.
using Keep = std::function<bool(uint64_t start_ns, uint64_t end_ns)>;
void drain(spool::Writer& writer, const Keep& keep);
// Closes what is open (rows without an end), hands everything over and stops recording.
void stop(spool::Writer& writer, const Keep& keep);
// Called around every fork, whether a recording runs or not: NVTX calls in the child must not wait for a thread that
// does not exist there.
void before_fork() noexcept;
void after_fork_parent() noexcept;
void after_fork_child() noexcept;
// `ended` is called on the thread that ends a range of this name; nullptr: no more.
void watch(const std::string& name, void (*ended)());
uint64_t count() noexcept;  // handed to the writer since start()
uint64_t lost() noexcept;   // since start(), because memory ran out
// Libraries that attach outside of a recording are accepted too: a recording may come later.
void expect_recording() noexcept;
bool expected() noexcept;  // a recording runs, or may come
void library_attached() noexcept;
uint32_t attached_libraries() noexcept;  // since the process began

// From instrumented code, on any thread. Times and threads are filled in here.
int push(Event event);  // the new range's level, from 0
// The level that ended; -1: nothing is open. `data` is added to the range's.
int pop(uint32_t domain, uint64_t end_ns, const std::string& data = {});
void mark(Event event);
uint64_t range_start(Event event);
void range_end(uint64_t id, uint64_t end_ns, const std::string& data = {});

Event make_event(spool::RangeType type, const nvtx_names::Domain* domain);

}  // namespace plab::recorder::nvtx_ranges
