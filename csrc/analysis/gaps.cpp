// SPDX-License-Identifier: Apache-2.0
#include "analysis/gaps.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>

namespace plab::analysis {
namespace {

std::vector<int32_t> by_track_and_start(const trace::Ranges& ranges) {
  std::vector<int32_t> order(ranges.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tie(ranges.track[a], ranges.start_ns[a], a) <
           std::tie(ranges.track[b], ranges.start_ns[b], b);
  });
  return order;
}

}  // namespace

Gaps gaps_between(const trace::Ranges& operations) {
  Gaps out;
  int32_t track = trace::kNone;
  int64_t busy_until = 0;
  for (const int32_t row : by_track_and_start(operations)) {
    const int64_t start_ns = operations.start_ns[row];
    if (operations.track[row] != track) {
      track = operations.track[row];
      busy_until = start_ns;
    }
    if (start_ns > busy_until) {
      out.start_ns.push_back(busy_until);
      out.end_ns.push_back(start_ns);
      out.track.push_back(track);
      out.next.push_back(row);
    }
    busy_until = std::max({busy_until, start_ns, operations.end_ns[row]});
  }
  return out;
}

Segments winners(const trace::Ranges& activities, trace::Column<int32_t> layer) {
  const auto by_start = by_track_and_start(activities);
  std::vector<int32_t> by_end(by_start);
  std::sort(by_end.begin(), by_end.end(), [&](int32_t a, int32_t b) {
    return std::tie(activities.track[a], activities.end_ns[a]) <
           std::tie(activities.track[b], activities.end_ns[b]);
  });

  Segments out;
  const auto emit = [&](int64_t from, int64_t to, int32_t track, int32_t winner) {
    if (from >= to) return;
    if (!out.winner.empty() && out.winner.back() == winner && out.end_ns.back() == from) {
      out.end_ns.back() = to;
      return;
    }
    out.start_ns.push_back(from);
    out.end_ns.push_back(to);
    out.track.push_back(track);
    out.winner.push_back(winner);
  };
  std::set<std::tuple<int32_t, int64_t, int32_t>> open;  // layer, start, row: the greatest wins
  const auto key = [&](int32_t row) { return std::tuple(layer[row], activities.start_ns[row], row); };
  int64_t now_ns = 0;
  const auto pass_to = [&](int64_t time_ns, int32_t track) {
    if (!open.empty()) emit(now_ns, time_ns, track, std::get<2>(*open.rbegin()));
    now_ns = time_ns;
  };
  auto ending = by_end.begin();
  const auto close_next = [&] {
    const int32_t row = *ending++;
    if (activities.end_ns[row] <= activities.start_ns[row]) return;
    pass_to(activities.end_ns[row], activities.track[row]);
    open.erase(key(row));
  };
  for (const int32_t row : by_start) {
    if (activities.end_ns[row] <= activities.start_ns[row]) continue;
    while (std::tie(activities.track[*ending], activities.end_ns[*ending]) <=
           std::tie(activities.track[row], activities.start_ns[row])) {
      close_next();
    }
    pass_to(activities.start_ns[row], activities.track[row]);
    open.insert(key(row));
  }
  while (ending != by_end.end()) close_next();
  return out;
}

Pieces cut(const trace::Ranges& windows, const Segments& segments) {
  Pieces out;
  const auto add = [&](int32_t window, int64_t from, int64_t to, int32_t winner) {
    if (from >= to) return;
    out.window.push_back(window);
    out.start_ns.push_back(from);
    out.end_ns.push_back(to);
    out.winner.push_back(winner);
  };
  const auto rows = std::views::iota(size_t{0}, segments.winner.size());
  for (size_t w = 0; w < windows.size(); ++w) {
    const int32_t track = windows.track[w], window = static_cast<int32_t>(w);
    const int64_t end_ns = windows.end_ns[w];
    int64_t now_ns = windows.start_ns[w];
    // The first segment of this track that ends after the window begins.
    const auto first = std::ranges::partition_point(rows, [&](size_t row) {
      return std::tie(segments.track[row], segments.end_ns[row]) <= std::tie(track, now_ns);
    });
    for (const size_t row : std::ranges::subrange(first, rows.end())) {
      if (segments.track[row] != track || segments.start_ns[row] >= end_ns) break;
      const int64_t from = std::max(now_ns, segments.start_ns[row]);
      const int64_t to = std::min(end_ns, segments.end_ns[row]);
      add(window, now_ns, from, trace::kNone);
      add(window, from, to, segments.winner[row]);
      now_ns = std::max(now_ns, to);
    }
    add(window, now_ns, end_ns, trace::kNone);
  }
  return out;
}

}  // namespace plab::analysis
