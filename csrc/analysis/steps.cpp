// SPDX-License-Identifier: Apache-2.0
#include "analysis/steps.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace plab::analysis {
namespace {

constexpr size_t kMostCandidates = 64;
constexpr int64_t kTimesAtLeast = 3;

// A symbol that occurs once per step has the step's length between its occurrences; a rare symbol more
// probably does than a frequent one.
std::vector<int64_t> candidates(trace::Column<int32_t> symbols) {
  std::unordered_map<int32_t, std::vector<int64_t>> places;
  for (size_t i = 0; i < symbols.size(); ++i) places[symbols[i]].push_back(static_cast<int64_t>(i));
  std::vector<const std::vector<int64_t>*> rarest;
  for (const auto& [symbol, at] : places) {
    if (static_cast<int64_t>(at.size()) >= kTimesAtLeast) rarest.push_back(&at);
  }
  std::sort(rarest.begin(), rarest.end(), [](const auto* a, const auto* b) {
    return a->size() != b->size() ? a->size() < b->size() : a->front() < b->front();
  });
  std::vector<int64_t> found;
  for (const auto* at : rarest) {
    if (found.size() >= kMostCandidates) break;
    std::vector<int64_t> distances;
    for (size_t i = 1; i < at->size(); ++i) distances.push_back((*at)[i] - (*at)[i - 1]);
    const auto middle = distances.begin() + static_cast<int64_t>(distances.size() / 2);
    std::nth_element(distances.begin(), middle, distances.end());
    if (*middle > 1 && std::find(found.begin(), found.end(), *middle) == found.end())
      found.push_back(*middle);
  }
  return found;
}

}  // namespace

Period period_of(trace::Column<int32_t> symbols) {
  const auto size = static_cast<int64_t>(symbols.size());
  Period best;
  int64_t best_covered = 0;
  for (const int64_t length : candidates(symbols)) {
    // The longest interval in which every symbol repeats after `length`.
    int64_t run = 0;
    for (int64_t i = 0; i + length < size; ++i) {
      run = symbols[i] == symbols[i + length] ? run + 1 : 0;
      const int64_t covered = run + length;
      if (covered < kTimesAtLeast * length || covered < best_covered) continue;
      if (covered > best_covered || length < best.length) {
        best = {i - run + 1, length, covered / length};
        best_covered = covered;
      }
    }
  }
  return best;
}

}  // namespace plab::analysis
