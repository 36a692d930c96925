// SPDX-License-Identifier: Apache-2.0
#include "analysis/intervals.h"

#include <algorithm>
#include <numeric>

namespace plab::analysis {
namespace {

// Traces are written nearly in time order, so check first and sort only if needed.
template <class Less>
std::vector<int32_t> order_of(size_t size, Less less) {
  std::vector<int32_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  if (!std::is_sorted(order.begin(), order.end(), less)) std::sort(order.begin(), order.end(), less);
  return order;
}

}  // namespace

Intervals merged(trace::Column<int64_t> start_ns, trace::Column<int64_t> end_ns) {
  const auto order =
      order_of(start_ns.size(), [&](int32_t a, int32_t b) { return start_ns[a] < start_ns[b]; });
  Intervals out;
  for (const int32_t row : order) {
    if (end_ns[row] <= start_ns[row]) continue;
    if (!out.end_ns.empty() && start_ns[row] <= out.end_ns.back()) {
      out.end_ns.back() = std::max(out.end_ns.back(), end_ns[row]);
    } else {
      out.start_ns.push_back(start_ns[row]);
      out.end_ns.push_back(end_ns[row]);
    }
  }
  return out;
}

std::vector<int64_t> busy_ns(const trace::Ranges& ranges, int32_t tracks) {
  const auto order =
      order_of(ranges.size(), [&](int32_t a, int32_t b) { return ranges.start_ns[a] < ranges.start_ns[b]; });
  // One running end per track: the tracks interleave in time, their unions do not touch each other.
  std::vector<int64_t> busy(tracks, 0), covered_until(tracks, INT64_MIN);
  for (const int32_t row : order) {
    const int32_t track = ranges.track[row];
    const int64_t from = std::max(ranges.start_ns[row], covered_until[track]);
    if (ranges.end_ns[row] <= from) continue;
    busy[track] += ranges.end_ns[row] - from;
    covered_until[track] = ranges.end_ns[row];
  }
  return busy;
}

}  // namespace plab::analysis
