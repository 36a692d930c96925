// SPDX-License-Identifier: Apache-2.0
// Per GPU operation: its phase, its Python stack, and the reason if it has no stack.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// Why an operation has no stack. Unknown is not zero: each reason is a separate row in every table.
enum class Reason : uint8_t {
  kAttributed = 0,
  kNoCall = 1,          // no record of the launching call: it ran before the recording began, or was lost
  kNoStack = 2,         // the call was recorded without Python frames
  kNoSequence = 3,      // of a node without a number, after none that launched
  kForwardUnknown = 4,  // backward, but of what was not recorded
  kForwardWithoutStack = 5,  // backward of a forward call that was recorded without Python frames
};

// Per call, from autograd_link.h.
struct CallAnswers {
  trace::Column<int32_t> stack;  // the call's own stack, 0 without Python frames
  trace::Column<uint8_t> phase;
  trace::Column<uint8_t> match;
  trace::Column<int32_t> forward_row;
  trace::Column<uint8_t> traits;
};

struct Attribution {
  std::vector<int32_t> stack;   // per operation, 0 if none answers
  std::vector<uint8_t> phase;   // Phase
  std::vector<uint8_t> match;   // Match
  std::vector<uint8_t> reason;  // Reason
};

// `call` is the row of the launching call per operation, or kNone.
Attribution attribute(trace::Column<int32_t> call, const CallAnswers& answers);

}  // namespace plab::analysis
