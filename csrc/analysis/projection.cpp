// SPDX-License-Identifier: Apache-2.0
#include "analysis/projection.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

namespace plab::analysis {
namespace {

using Interval = std::pair<int64_t, int64_t>;

// The length of the union. Operations of one stream come in order, so sorting is the exception.
int64_t covered(std::vector<Interval>& intervals) {
  if (!std::is_sorted(intervals.begin(), intervals.end())) std::sort(intervals.begin(), intervals.end());
  int64_t total = 0, until = INT64_MIN;
  for (const auto& [start, end] : intervals) {
    const int64_t from = std::max(start, until);
    if (end <= from) continue;
    total += end - from;
    until = end;
  }
  return total;
}

}  // namespace

Projection project(const trace::Ranges& ranges, const Launched& launched) {
  const trace::Ranges& call = launched.call;
  std::vector<int32_t> order(call.size());
  std::iota(order.begin(), order.end(), 0);
  const auto place = [&](int32_t row) { return std::pair(call.track[row], call.start_ns[row]); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return place(a) < place(b); });

  const size_t size = ranges.size();
  Projection out{std::vector<int64_t>(size), std::vector<int64_t>(size), std::vector<int64_t>(size),
                 std::vector<int64_t>(size)};
  std::vector<Interval> inside;
  for (size_t range = 0; range < size; ++range) {
    const std::pair from(ranges.track[range], ranges.start_ns[range]);
    const std::pair to(ranges.track[range], ranges.end_ns[range]);
    auto at = std::lower_bound(order.begin(), order.end(), from,
                               [&](int32_t row, const auto& moment) { return place(row) < moment; });
    inside.clear();
    int64_t last = INT64_MIN;
    for (; at != order.end() && place(*at) <= to; ++at) {
      if (call.end_ns[*at] > ranges.end_ns[range]) continue;
      inside.emplace_back(launched.start_ns[*at], launched.end_ns[*at]);
      last = std::max(last, launched.end_ns[*at]);
    }
    if (inside.empty()) continue;
    out.busy_ns[range] = covered(inside);  // sorts
    out.first_ns[range] = inside.front().first;
    out.last_ns[range] = last;
    out.count[range] = static_cast<int64_t>(inside.size());
  }
  return out;
}

}  // namespace plab::analysis
