// SPDX-License-Identifier: Apache-2.0
// The time in which nothing ran, and who held it up: idle intervals, what a thread was doing at each moment,
// and windows cut by it.
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
// in time order. An operation without a length ends a gap as well. O(N log N).
Gaps gaps_between(const trace::Ranges& operations);

struct Segments {
  std::vector<int64_t> start_ns, end_ns;
  std::vector<int32_t> track, winner;
};

// What a track was doing at each moment: of the activities around it the one of the highest layer, there the
// one that started last (the innermost), there the one listed last. Disjoint segments by track, then in time
// order; moments without an activity are in none. Activities need not nest. O(N log N).
Segments winners(const trace::Ranges& activities, trace::Column<int32_t> layer);

struct Pieces {
  std::vector<int32_t> window;
  std::vector<int64_t> start_ns, end_ns;
  std::vector<int32_t> winner;  // kNone where no segment is
};

// Windows cut along the segments of their track; the pieces of a window sum to its length exactly. Segments
// as `winners` returns them. O(W log S + pieces).
Pieces cut(const trace::Ranges& windows, const Segments& segments);

}  // namespace plab::analysis
