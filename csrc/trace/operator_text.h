// SPDX-License-Identifier: Apache-2.0
// The texts that emit_nvtx gives its ranges: `aten::mm, seq = 4, op_id = 29, sizes = [[2, 3], [3, 4]]`.
#pragma once

#include <cstdint>
#include <string_view>

#include "trace/columns.h"

namespace plab::trace {

struct OperatorText {
  std::string_view name;           // what stands before the first marker
  int64_t sequence = kNoSequence;  // N of `, seq = N`
};

OperatorText cut_operator_text(std::string_view text);

}  // namespace plab::trace
