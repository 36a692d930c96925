// SPDX-License-Identifier: Apache-2.0
// Steps of a program without step ranges: the period of its launches.
#pragma once

#include "trace/columns.h"

namespace plab::analysis {

struct Period {
  int64_t first = 0;   // where the repetition begins
  int64_t length = 0;  // symbols per repetition, 0 if there is none
  int64_t times = 0;   // whole repetitions from `first`
};

// The period that explains most of a sequence, exactly and at least three times in a row; of periods that
// explain equally much the shortest. A sequence of one symbol has none. O(candidates * N), where the
// candidates are at most 64 distances between equal symbols, those of the rarest symbols first.
Period period_of(trace::Column<int32_t> symbols);

}  // namespace plab::analysis
