// SPDX-License-Identifier: Apache-2.0
#include "analysis/attribution.h"

#include "analysis/autograd_link.h"

namespace plab::analysis {
namespace {

Reason why_none(Match match, bool has_forward) {
  if (match == Match::kOwn) return Reason::kNoStack;
  if (match == Match::kNoNumber && !has_forward) return Reason::kNoSequence;
  return has_forward ? Reason::kForwardWithoutStack : Reason::kForwardUnknown;
}

}  // namespace

Attribution attribute(trace::Column<int32_t> call, const CallAnswers& answers) {
  const size_t size = call.size();
  Attribution out{std::vector<int32_t>(size, 0), std::vector<uint8_t>(size, 0), std::vector<uint8_t>(size, 0),
                  std::vector<uint8_t>(size, 0)};
  for (size_t row = 0; row < size; ++row) {
    const int32_t from = call[row];
    if (from == trace::kNone) {
      out.match[row] = static_cast<uint8_t>(Match::kUnknown);
      out.reason[row] = static_cast<uint8_t>(Reason::kNoCall);
      continue;
    }
    const int32_t forward = answers.forward_row[from];
    out.phase[row] = answers.phase[from];
    out.match[row] = answers.match[from];
    if (forward != trace::kNone) out.stack[row] = answers.stack[forward];
    if (out.stack[row] == 0 && (answers.traits[from] & kFramesInsideNode) != 0) {
      out.stack[row] = answers.stack[from];
      out.match[row] = static_cast<uint8_t>(Match::kOwn);
    }
    if (out.stack[row] == 0) {
      out.reason[row] =
          static_cast<uint8_t>(why_none(static_cast<Match>(answers.match[from]), forward != trace::kNone));
    }
  }
  return out;
}

}  // namespace plab::analysis
