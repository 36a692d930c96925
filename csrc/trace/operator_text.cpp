// SPDX-License-Identifier: Apache-2.0
#include "trace/operator_text.h"

#include <algorithm>
#include <charconv>

namespace plab::trace {
namespace {

constexpr std::string_view kSequence = ", seq = ";
constexpr std::string_view kMarkers[] = {kSequence, ", op_id = ", ", sizes = ", ", input_op_ids = "};

// A text without digits after its marker counts as 0, as SQLite casts it; so does a number over 64 bits count
// as the nearest that fits.
int64_t number_at(std::string_view text) {
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range) return text.front() == '-' ? INT64_MIN : INT64_MAX;
  return value;
}

}  // namespace

OperatorText cut_operator_text(std::string_view text) {
  OperatorText out{text};
  // One pass over the commas: most texts have none, and a marker is told by what follows one.
  size_t cut = std::string_view::npos;
  for (size_t at = text.find(','); at != std::string_view::npos; at = text.find(',', at + 1)) {
    const std::string_view rest = text.substr(at);
    if (cut == std::string_view::npos &&
        std::any_of(std::begin(kMarkers), std::end(kMarkers), [&](auto m) { return rest.starts_with(m); })) {
      cut = at;
    }
    if (rest.starts_with(kSequence)) {
      out.sequence = number_at(rest.substr(kSequence.size()));
      break;
    }
  }
  out.name = text.substr(0, cut);
  return out;
}

}  // namespace plab::trace
