// SPDX-License-Identifier: Apache-2.0
#include "analysis/overlap.h"

#include <algorithm>
#include <array>

namespace plab::analysis {
namespace {

struct Event {
  int64_t time_ns;
  int32_t track, row;
  enum What : uint8_t { kOpen, kClose, kWindowOpen, kWindowClose } what;
};

// The starts and ends of all rows that last, as events.
void add_events(std::vector<Event>& events, const trace::Ranges& ranges, Event::What open,
                Event::What close) {
  for (size_t row = 0; row < ranges.size(); ++row) {
    if (ranges.end_ns[row] <= ranges.start_ns[row]) continue;
    events.push_back({ranges.start_ns[row], ranges.track[row], static_cast<int32_t>(row), open});
    events.push_back({ranges.end_ns[row], ranges.track[row], static_cast<int32_t>(row), close});
  }
}

// In time order per track. What happens at one moment may come in any order: no time passes between.
void sort_events(std::vector<Event>& events) {
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.track != b.track ? a.track < b.track : a.time_ns < b.time_ns;
  });
}

}  // namespace

std::vector<int64_t> set_time_ns(const trace::Ranges& operations, trace::Column<int32_t> operation_class,
                                 const trace::Ranges& windows, int32_t classes) {
  std::vector<Event> events;
  events.reserve(2 * (operations.size() + windows.size()));
  add_events(events, operations, Event::kOpen, Event::kClose);
  add_events(events, windows, Event::kWindowOpen, Event::kWindowClose);
  sort_events(events);

  const size_t sets = size_t{1} << classes;
  std::vector<int64_t> time_ns(windows.size() * sets, 0);
  std::array<int32_t, kMostClasses> active{};
  std::vector<int32_t> open_windows;
  size_t set = 0;
  int64_t now_ns = 0;
  for (const Event& event : events) {
    // Everything that opened on a track has closed on it, so a new track starts with nothing open.
    for (const int32_t window : open_windows) time_ns[window * sets + set] += event.time_ns - now_ns;
    now_ns = event.time_ns;
    switch (event.what) {
      case Event::kWindowOpen:
        open_windows.push_back(event.row);
        break;
      case Event::kWindowClose:
        std::erase(open_windows, event.row);
        break;
      case Event::kOpen:
      case Event::kClose: {
        const int32_t which = operation_class[event.row];
        active[which] += event.what == Event::kOpen ? 1 : -1;
        set = active[which] > 0 ? set | size_t{1} << which : set & ~(size_t{1} << which);
      }
    }
  }
  return time_ns;
}

Lanes lane_time_ns(const trace::Ranges& operations, trace::Column<int32_t> lane, int32_t tracks,
                   int32_t lanes) {
  std::vector<Event> events;
  events.reserve(2 * operations.size());
  add_events(events, operations, Event::kOpen, Event::kClose);
  sort_events(events);

  Lanes out{std::vector<int64_t>(lanes, 0), std::vector<int64_t>(lanes, 0), {}};
  out.level_ns.resize(tracks);
  std::vector<int32_t> active(lanes, 0), busy;
  int64_t now_ns = 0;
  for (const Event& event : events) {
    const int64_t passed_ns = event.time_ns - now_ns;
    now_ns = event.time_ns;
    if (!busy.empty() && passed_ns > 0) {
      auto& levels = out.level_ns[event.track];
      if (levels.size() < busy.size()) levels.resize(busy.size(), 0);
      levels[busy.size() - 1] += passed_ns;
      for (const int32_t here : busy) {
        out.busy_ns[here] += passed_ns;
        if (busy.size() > 1) out.shared_ns[here] += passed_ns;
      }
    }
    const int32_t changed = lane[event.row];
    const bool was_busy = active[changed] > 0;
    active[changed] += event.what == Event::kOpen ? 1 : -1;
    const bool is_busy = active[changed] > 0;
    if (is_busy && !was_busy) busy.push_back(changed);
    if (was_busy && !is_busy) std::erase(busy, changed);
  }
  return out;
}

}  // namespace plab::analysis
