// SPDX-License-Identifier: Apache-2.0
#include "analysis/containment.h"

#include <algorithm>
#include <numeric>

namespace plab::analysis {
namespace {

struct Open {
  int32_t range;
  int64_t end_ns;  // the range's own end, or its parent's where it bled past it
};

// Closes what has ended before `range` and says whether the range nests in what is left open. May clip
// `end_ns`.
bool nests(std::vector<Open>& open, int64_t start_ns, int64_t& end_ns, int64_t tolerance_ns) {
  while (!open.empty()) {
    const int64_t around = open.back().end_ns;
    if (around <= start_ns) {
      open.pop_back();
    } else if (end_ns <= around) {
      return true;
    } else if (const int64_t overlap = around - start_ns, past = end_ns - around;
               std::min(overlap, past) < tolerance_ns) {
      if (past <= overlap) {
        end_ns = around;
        return true;
      }
      open.pop_back();  // it had ended, only its timestamp came late
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

Containment contain(const trace::Ranges& ranges, const trace::Moments& moments, int64_t tolerance_ns) {
  std::vector<int32_t> by_range(ranges.size()), by_moment(moments.size());
  std::iota(by_range.begin(), by_range.end(), 0);
  std::iota(by_moment.begin(), by_moment.end(), 0);
  std::stable_sort(by_range.begin(), by_range.end(), [&](int32_t a, int32_t b) {
    if (ranges.track[a] != ranges.track[b]) return ranges.track[a] < ranges.track[b];
    if (ranges.start_ns[a] != ranges.start_ns[b]) return ranges.start_ns[a] < ranges.start_ns[b];
    return ranges.end_ns[a] > ranges.end_ns[b];  // the longer one is the outer one
  });
  std::stable_sort(by_moment.begin(), by_moment.end(), [&](int32_t a, int32_t b) {
    if (moments.track[a] != moments.track[b]) return moments.track[a] < moments.track[b];
    return moments.time_ns[a] < moments.time_ns[b];
  });

  Containment out;
  out.parent.assign(ranges.size(), trace::kNone);
  out.innermost.assign(moments.size(), trace::kNone);
  std::vector<Open> open;
  int32_t open_track = 0;
  auto next = by_range.begin();
  const auto enter = [&](int32_t range) {
    if (ranges.track[range] != open_track) open.clear();
    open_track = ranges.track[range];
    int64_t end_ns = ranges.end_ns[range];
    if (!nests(open, ranges.start_ns[range], end_ns, tolerance_ns)) {
      ++out.dropped;
      return;
    }
    if (!open.empty()) out.parent[range] = open.back().range;
    open.push_back({range, end_ns});
  };

  for (const int32_t moment : by_moment) {
    const int32_t track = moments.track[moment];
    const int64_t now = moments.time_ns[moment];
    while (next != by_range.end() &&
           (ranges.track[*next] < track || (ranges.track[*next] == track && ranges.start_ns[*next] <= now))) {
      enter(*next++);
    }
    if (open_track != track) open.clear();
    while (!open.empty() && open.back().end_ns < now) open.pop_back();
    if (!open.empty()) out.innermost[moment] = open.back().range;
  }
  while (next != by_range.end()) enter(*next++);
  return out;
}

}  // namespace plab::analysis
