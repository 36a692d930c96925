// SPDX-License-Identifier: Apache-2.0
// Events that keep the host from launching and report their own times: garbage collections, and compilations by
// torch.compile.
//
// Python calls began() and ended() with the GIL, from gc.callbacks and torch._dynamo.callback. Both are C
// functions there, so that the innermost frame is the one that caused the pause.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plab::recorder::host_events {

enum class Kind : uint8_t { kCollection, kCompilation };

struct Event {
  uint64_t start_ns, end_ns;
  uint32_t thread, stack;
  std::string text;
};

void start() noexcept;
void stop() noexcept;  // also in a forked child
void began(Kind kind) noexcept;
// Very short pauses are dropped: collections of the youngest generation take some microseconds.
void ended(Kind kind, std::string text);
// Thread: the consumer. What ended since the last call.
std::vector<Event> take();

}  // namespace plab::recorder::host_events
