// SPDX-License-Identifier: Apache-2.0
#include "analysis/schedule.h"

namespace plab::analysis {

Schedule schedule(const Dependencies& dependencies, trace::Column<int64_t> late_ns,
                  trace::Column<int64_t> given_ns) {
  const size_t moments = dependencies.moments();
  Schedule out{std::vector<int64_t>(moments), std::vector<int32_t>(moments, trace::kNone)};
  for (size_t moment = 0; moment < moments; ++moment) {
    int64_t ready_ns = given_ns[moment], source_ns = 0;
    int32_t decided_by = trace::kNone;
    for (int64_t row = dependencies.first[moment]; row < dependencies.first[moment + 1]; ++row) {
      const int64_t from_ns = out.time_ns[dependencies.source[row]];
      const int64_t at_ns = from_ns + dependencies.after_ns[row];
      const bool later = at_ns > ready_ns || (at_ns == ready_ns && from_ns > source_ns);
      if (decided_by != trace::kNone && !later) continue;
      ready_ns = at_ns;
      source_ns = from_ns;
      decided_by = static_cast<int32_t>(row);
    }
    out.time_ns[moment] = decided_by == trace::kNone ? ready_ns : ready_ns + late_ns[moment];
    out.decided_by[moment] = decided_by;
  }
  return out;
}

std::vector<int32_t> deciding_chain(trace::Column<int32_t> source, trace::Column<int64_t> time_ns,
                                    trace::Column<int32_t> decided_by, int32_t last, int64_t until_ns) {
  std::vector<int32_t> out;
  for (int32_t moment = last; time_ns[moment] > until_ns;) {
    const int32_t row = decided_by[moment];
    // A source never comes behind its moment, or the chain would not end.
    if (row == trace::kNone || source[row] >= moment) break;
    out.push_back(row);
    moment = source[row];
  }
  return out;
}

}  // namespace plab::analysis
