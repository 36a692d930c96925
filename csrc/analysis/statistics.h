// SPDX-License-Identifier: Apache-2.0
// Count, total, extremes, median and spread of a column, for each key.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Statistics {
  std::vector<int64_t> total, count, shortest, longest, median;  // per key; all 0 where a key has no row
  std::vector<double> deviation;  // of the sample (n - 1), 0 where a key has fewer than two rows
};

// Exact but for `deviation`. The median of an even number of rows is the middle of the two in the middle,
// rounded down. Rows with a negative key are ignored. O(n): rows are distributed to their keys, not sorted.
Statistics statistics(trace::Column<int32_t> key, trace::Column<int64_t> value, int32_t keys);

}  // namespace plab::analysis
