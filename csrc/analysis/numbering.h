// SPDX-License-Identifier: Apache-2.0
// Number the distinct values of a column.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

struct Numbering {
  std::vector<int32_t> number;    // per row
  std::vector<int64_t> distinct;  // per number
};

// In order of appearance, from 0. By hashing: a column of a trace has millions of rows and few distinct values.
Numbering numbering(trace::Column<int64_t> values);

}  // namespace plab::analysis
