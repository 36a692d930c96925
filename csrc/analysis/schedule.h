// SPDX-License-Identifier: Apache-2.0
// When the moments of a graph of dependencies can come: the longest paths, and the chain that decides.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// Moments are numbered so that each comes after all it depends on. The dependencies of moment m are the rows
// first[m] to first[m + 1] - 1: it comes `after_ns` after `source` at the earliest.
struct Dependencies {
  trace::Column<int64_t> first;
  trace::Column<int32_t> source;
  trace::Column<int64_t> after_ns;
  size_t moments() const { return first.size() - 1; }
};

struct Schedule {
  std::vector<int64_t> time_ns;
  std::vector<int32_t> decided_by;  // the dependency that decided, kNone for a moment without any
};

// Each moment comes when its last dependency lets it, and `late_ns` later than that; one without a
// dependency comes at `given_ns`. Of equal dependencies the one with the latest source decides, then the one
// listed first. O(moments + dependencies).
Schedule schedule(const Dependencies& dependencies, trace::Column<int64_t> late_ns,
                  trace::Column<int64_t> given_ns);

// The dependencies that decided, from moment `last` backward to the first source at or before `until_ns`.
std::vector<int32_t> deciding_chain(trace::Column<int32_t> source, trace::Column<int64_t> time_ns,
                                    trace::Column<int32_t> decided_by, int32_t last, int64_t until_ns);

}  // namespace plab::analysis
