// SPDX-License-Identifier: Apache-2.0
// Sums by key, and searches in stack trees.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Sums {
  std::vector<int64_t> total, count;  // per key 0 .. keys-1
};

// Exact integer sums (a float64 loses nanoseconds). Rows with a negative key are ignored.
Sums sum_by_key(trace::Column<int32_t> key, trace::Column<int64_t> value, int32_t keys);

// Per node of a forest the nearest marked node on the path to its root, including itself, or kNone. `parent`
// may be in any order; an invalid parent or a cycle ends the path.
std::vector<int32_t> nearest_marked(trace::Column<int32_t> parent, trace::Column<uint8_t> marked);

}  // namespace plab::analysis
