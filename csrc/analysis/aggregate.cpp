// SPDX-License-Identifier: Apache-2.0
#include "analysis/aggregate.h"

namespace plab::analysis {

Sums sum_by_key(trace::Column<int32_t> key, trace::Column<int64_t> value, int32_t keys) {
  Sums sums{std::vector<int64_t>(keys, 0), std::vector<int64_t>(keys, 0)};
  for (size_t row = 0; row < key.size(); ++row) {
    if (key[row] < 0) continue;
    sums.total[key[row]] += value[row];
    ++sums.count[key[row]];
  }
  return sums;
}

std::vector<int32_t> nearest_marked(trace::Column<int32_t> parent, trace::Column<uint8_t> marked) {
  constexpr int32_t kUndecided = -2;
  const auto size = static_cast<int32_t>(parent.size());
  std::vector<int32_t> found(size, kUndecided), path;
  for (int32_t start = 0; start < size; ++start) {
    int32_t node = start;
    int32_t answer = trace::kNone;
    while (true) {
      if (node < 0 || node >= size) break;
      if (found[node] != kUndecided) {
        answer = found[node];
        break;
      }
      if (marked[node] != 0) {
        answer = node;
        found[node] = node;
        break;
      }
      found[node] = trace::kNone;  // met again on this way, it is a circle
      path.push_back(node);
      node = parent[node];
    }
    for (const int32_t passed : path) found[passed] = answer;
    path.clear();
  }
  return found;
}

}  // namespace plab::analysis
