// SPDX-License-Identifier: Apache-2.0
// Concurrency: time by the set of busy classes, and by the number of busy lanes.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

inline constexpr int32_t kMostClasses = 8;

// Per window the time in which exactly the classes of each set were busy. A set is a number, bit c for class
// c; set 0 is idle. Row `window` has 2^classes entries, and they sum to the window's length. A window sees
// the operations of its own track only; windows may overlap each other. Classes are 0 .. classes-1.
// O((N + W) log (N + W)) for windows that do not overlap.
std::vector<int64_t> set_time_ns(const trace::Ranges& operations, trace::Column<int32_t> operation_class,
                                 const trace::Ranges& windows, int32_t classes);

struct Lanes {
  std::vector<int64_t> busy_ns, shared_ns;  // per lane; shared: another lane of the same track was busy too
  std::vector<std::vector<int64_t>> level_ns;  // per track the time in which exactly 1, 2, .. lanes were busy
};

// A lane is part of one track (a stream of a device); both are dense numbers.
Lanes lane_time_ns(const trace::Ranges& operations, trace::Column<int32_t> lane, int32_t tracks,
                   int32_t lanes);

}  // namespace plab::analysis
