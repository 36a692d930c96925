// SPDX-License-Identifier: Apache-2.0
#include "analysis/nesting.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace plab::analysis {
namespace {

// The open intervals of every lane of one track.
class LanesOfTrack {
 public:
  int32_t place(int64_t start_ns, int64_t end_ns) {
    close(start_ns);
    const int32_t lane = choose(end_ns);
    if (!open_[lane].empty()) by_end_.erase({open_[lane].back(), lane});
    free_.erase(lane);
    open_[lane].push_back(end_ns);
    by_end_.insert({end_ns, lane});
    return lane;
  }

 private:
  void close(int64_t now_ns) {
    while (!by_end_.empty() && by_end_.begin()->first <= now_ns) {
      const int32_t lane = by_end_.begin()->second;
      by_end_.erase(by_end_.begin());
      open_[lane].pop_back();
      if (open_[lane].empty()) {
        free_.insert(lane);
      } else {
        by_end_.insert({open_[lane].back(), lane});
      }
    }
  }

  // The first lane where it fits, else the one whose innermost interval is the tightest around it: searching
  // them in turn would be quadratic where many overlap.
  int32_t choose(int64_t end_ns) {
    if (!open_.empty() && (open_[0].empty() || open_[0].back() >= end_ns)) return 0;
    if (const auto around = by_end_.lower_bound({end_ns, 0}); around != by_end_.end()) return around->second;
    if (!free_.empty()) return *free_.begin();
    open_.emplace_back();
    return static_cast<int32_t>(open_.size()) - 1;
  }

  std::vector<std::vector<int64_t>> open_;        // per lane the ends of what is open, the innermost last
  std::set<std::pair<int64_t, int32_t>> by_end_;  // the innermost end of every lane that is not free
  std::set<int32_t> free_;
};

}  // namespace

std::vector<int32_t> nesting_lanes(const trace::Ranges& intervals) {
  std::vector<int32_t> order(intervals.size()), lane(intervals.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (intervals.track[a] != intervals.track[b]) return intervals.track[a] < intervals.track[b];
    if (intervals.start_ns[a] != intervals.start_ns[b]) return intervals.start_ns[a] < intervals.start_ns[b];
    return intervals.end_ns[a] > intervals.end_ns[b];  // the longer one is the outer one
  });
  LanesOfTrack lanes;
  for (size_t i = 0; i < order.size(); ++i) {
    const int32_t row = order[i];
    if (i > 0 && intervals.track[row] != intervals.track[order[i - 1]]) lanes = {};
    lane[row] = lanes.place(intervals.start_ns[row], intervals.end_ns[row]);
  }
  return lane;
}

}  // namespace plab::analysis
