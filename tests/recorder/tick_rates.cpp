// SPDX-License-Identifier: Apache-2.0
// The timeline of ticks over a clock that the program itself drives: a counter whose rate changes, that
// jumps, and a wall clock that is set. Prints, for each interval, by how many ns the worst call was off once
// the timeline had two readings of the new clock.
#include <cstdio>
#include <cstdlib>

#include "recorder/system/tick_clock.h"

using plab::recorder::TickTimeline;

namespace {

uint64_t tick = 900'000'000'000, ns = 1'700'000'000'000'000'000;
double ticks_per_ns = 2.5;

void pass(uint64_t nanoseconds) {
  ns += nanoseconds;
  tick += static_cast<uint64_t>(static_cast<double>(nanoseconds) * ticks_per_ns);
}

TickTimeline::Anchor read() {
  pass(250'000);  // so that no two readings are of one moment
  return {tick, ns};
}

long worst(TickTimeline& timeline, int drains) {
  long most = 0;
  for (int drain = 0; drain < drains; ++drain) {
    pass(9'000'000);
    const uint64_t begin_tick = tick, begin_ns = ns;
    pass(11'000'000);
    timeline.anchor();
    const long off = std::labs(static_cast<long>(timeline.nanoseconds(begin_tick) - begin_ns));
    if (drain >= 2 && off > most) most = off;
  }
  return most;
}

}  // namespace

int main() {
  TickTimeline timeline(&read);
  timeline.start("");
  std::printf("steady %ld\n", worst(timeline, 100));
  ticks_per_ns = 2.1;
  std::printf("slower %ld\n", worst(timeline, 100));
  ticks_per_ns = 3.7, tick = 5'000'000;  // another machine, which has just been started
  std::printf("moved %ld\n", worst(timeline, 100));
  ticks_per_ns = 3.6;  // less than a step in one drain
  std::printf("little %ld\n", worst(timeline, 100));
  ns += 3'600'000'000'000;
  std::printf("set %ld\n", worst(timeline, 100));
  ns -= 7'200'000'000'000;
  std::printf("back %ld\n", worst(timeline, 100));
}
