// SPDX-License-Identifier: Apache-2.0
// The innermost range around each moment: one stack sweep per thread, without a join.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Containment {
  std::vector<int32_t> parent;     // per range: the range around it, or kNone
  std::vector<int32_t> innermost;  // per moment: the innermost range around it, or kNone
  int64_t dropped = 0;             // ranges that overlap another without nesting in it; they enclose nothing
};

// Ranges [start, end] of one track nest like calls. Timestamps are inexact: an overlap shorter than
// `tolerance_ns` counts as nested or as consecutive, a longer one drops the later range. O((R + M) log (R +
// M)).
Containment contain(const trace::Ranges& ranges, const trace::Moments& moments, int64_t tolerance_ns);

}  // namespace plab::analysis
