// SPDX-License-Identifier: Apache-2.0
// Idle time and its cause: idle intervals, the activity of a thread at each moment, and windows split by
// activity.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Gaps {
  std::vector<int64_t> start_ns, end_ns;
  std::vector<int32_t> track;
  std::vector<int32_t> next;  // the operation whose start ends the gap: of several the one listed first
};

// Per track the intervals between its first start and its last end in which no operation ran. By track, then
// in time order. An empty operation ends a gap too. O(N log N).
Gaps gaps_between(const trace::Ranges& operations);

struct Segments {
  std::vector<int64_t> start_ns, end_ns;
  std::vector<int32_t> track, winner;
};

// The activity of a track at each moment: the one of the highest layer, of these the one that started last
// (the innermost), of these the one listed last. Disjoint segments by track, then in time
// order; moments without an activity are in none. Activities need not nest. O(N log N).
Segments winners(const trace::Ranges& activities, trace::Column<int32_t> layer);

struct Pieces {
  std::vector<int32_t> window;
  std::vector<int64_t> start_ns, end_ns;
  std::vector<int32_t> winner;  // kNone where no segment is
};

// Windows split at the segments of their track; the pieces of a window sum to its length exactly. Segments
// as `winners` returns them. O(W log S + pieces).
Pieces cut(const trace::Ranges& windows, const Segments& segments);

}  // namespace plab::analysis
