// SPDX-License-Identifier: Apache-2.0
#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plab::analysis {
namespace {

// Of values in any order, which it may change.
int64_t median_of(std::span<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const int64_t below = *std::max_element(values.begin(), middle);
  return std::midpoint(below, *middle);
}

// Two passes: the squares of nanoseconds around zero would lose the spread of long values.
double deviation_of(std::span<const int64_t> values, int64_t total) {
  if (values.size() < 2) return 0.0;
  const double mean = static_cast<double>(total) / static_cast<double>(values.size());
  double squares = 0.0;
  for (const int64_t value : values) {
    const double off = static_cast<double>(value) - mean;
    squares += off * off;
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace

Statistics statistics(trace::Column<int32_t> key, trace::Column<int64_t> value, int32_t keys) {
  Statistics out{std::vector<int64_t>(keys), std::vector<int64_t>(keys), std::vector<int64_t>(keys),
                 std::vector<int64_t>(keys), std::vector<int64_t>(keys), std::vector<double>(keys)};
  for (const int32_t k : key) {
    if (k >= 0) ++out.count[k];
  }
  std::vector<int64_t> next(static_cast<size_t>(keys) + 1, 0);
  std::partial_sum(out.count.begin(), out.count.end(), next.begin() + 1);
  std::vector<int64_t> dealt(static_cast<size_t>(next.back()));
  for (size_t row = 0; row < key.size(); ++row) {
    if (key[row] >= 0) dealt[static_cast<size_t>(next[key[row]]++)] = value[row];
  }
  for (int32_t k = 0; k < keys; ++k) {
    if (out.count[k] == 0) continue;
    // Dealing moved `next` to the end of its key.
    const auto size = static_cast<size_t>(out.count[k]);
    const std::span<int64_t> mine(dealt.data() + (static_cast<size_t>(next[k]) - size), size);
    out.total[k] = std::accumulate(mine.begin(), mine.end(), int64_t{0});
    const auto [least, most] = std::minmax_element(mine.begin(), mine.end());
    out.shortest[k] = *least;
    out.longest[k] = *most;
    out.deviation[k] = deviation_of(mine, out.total[k]);
    out.median[k] = median_of(mine);
  }
  return out;
}

}  // namespace plab::analysis
