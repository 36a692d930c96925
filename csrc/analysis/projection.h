// SPDX-License-Identifier: Apache-2.0
// Host ranges projected to the GPU: the operations launched inside each range, and when they ran.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// GPU operations that have a call: the call's interval and thread, and the operation's own interval.
struct Launched {
  trace::Ranges call;
  trace::Column<int64_t> start_ns, end_ns;
};

struct Projection {
  std::vector<int64_t> first_ns, last_ns;  // per range: its operations' first start and last end, 0 without
  std::vector<int64_t> busy_ns;            // the union of its operations
  std::vector<int64_t> count;
};

// An operation belongs to every range of its call's thread that has the whole call inside of it; ranges need
// not nest. O((R + L) log L), and one step per operation of each range.
Projection project(const trace::Ranges& ranges, const Launched& launched);

}  // namespace plab::analysis
