// SPDX-License-Identifier: Apache-2.0
// Lanes for drawing: the intervals of one lane nest, even if those of one track do not.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// Per interval the lane of its track, counted from 0. Two intervals of a lane are apart, touch, or one
// contains the other; a viewer that draws a lane as a stack loses none. Intervals that nest by themselves
// are all in lane 0. O(n log n).
std::vector<int32_t> nesting_lanes(const trace::Ranges& intervals);

}  // namespace plab::analysis
