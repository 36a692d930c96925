// SPDX-License-Identifier: Apache-2.0
// Sets of intervals: busy time, in which concurrent operations count once.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Intervals {
  std::vector<int64_t> start_ns, end_ns;  // sorted, disjoint, none empty
};

// The union of [start, end) over all rows. Empty and backward rows cover nothing. O(n log n), O(n) when
// sorted.
Intervals merged(trace::Column<int64_t> start_ns, trace::Column<int64_t> end_ns);

// The length of the union per track 0 .. tracks-1.
std::vector<int64_t> busy_ns(const trace::Ranges& ranges, int32_t tracks);

}  // namespace plab::analysis
