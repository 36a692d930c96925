// SPDX-License-Identifier: Apache-2.0
#include "analysis/correlate.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace plab::analysis {
namespace {

constexpr int64_t kMostProcesses = 1 << 16;  // a process here is a dense number, unless the file is damaged

struct Call {
  int64_t id;
  int64_t start_ns;
  int32_t process;
  int32_t row;
};

bool before(const Call& a, const Call& b) {
  return std::tie(a.process, a.id, a.start_ns, a.row) < std::tie(b.process, b.id, b.start_ns, b.row);
}

// Calls by process, then id, then start. Each process has few threads, whose calls are nearly in order: split
// by process first, most of them need no sorting.
std::vector<Call> in_order(const trace::Correlations& calls, trace::Column<int64_t> start_ns) {
  const size_t size = calls.size();
  const auto call = [&](size_t row) {
    return Call{calls.id[row], start_ns[row], calls.process[row], static_cast<int32_t>(row)};
  };
  std::vector<Call> sorted(size);
  const auto [least, most] = std::minmax_element(calls.process.begin(), calls.process.end());
  const int64_t processes = size == 0 ? 0 : int64_t{*most} - *least + 1;
  if (processes > kMostProcesses) {
    for (size_t row = 0; row < size; ++row) sorted[row] = call(row);
    std::sort(sorted.begin(), sorted.end(), before);
    return sorted;
  }
  std::vector<size_t> next(static_cast<size_t>(processes) + 1, 0);
  for (size_t row = 0; row < size; ++row) ++next[calls.process[row] - *least + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  const std::vector<size_t> begin = next;
  for (size_t row = 0; row < size; ++row) sorted[next[calls.process[row] - *least]++] = call(row);
  for (size_t i = 0; i + 1 < begin.size(); ++i) {
    const auto first = sorted.begin() + static_cast<ptrdiff_t>(begin[i]);
    const auto last = sorted.begin() + static_cast<ptrdiff_t>(begin[i + 1]);
    if (!std::is_sorted(first, last, before)) std::sort(first, last, before);
  }
  return sorted;
}

}  // namespace

std::vector<int32_t> call_of(const trace::Correlations& operations, const trace::Correlations& calls,
                             trace::Column<int64_t> call_start_ns) {
  const std::vector<Call> sorted = in_order(calls, call_start_ns);
  std::vector<int32_t> out(operations.size(), trace::kNone);
  auto near =
      sorted.begin();  // operations come nearly in launch order: the next answer is close to the last one
  for (size_t row = 0; row < operations.size(); ++row) {
    const Call wanted{operations.id[row], INT64_MIN, operations.process[row], INT32_MIN};
    const auto nearly = near + std::min<ptrdiff_t>(64, sorted.end() - near);
    const bool is_near =
        near != sorted.end() && before(*near, wanted) && nearly != sorted.end() && !before(*nearly, wanted);
    near = is_near ? std::lower_bound(near, nearly, wanted, before)
                   : std::lower_bound(sorted.begin(), sorted.end(), wanted, before);
    if (near != sorted.end() && near->id == wanted.id && near->process == wanted.process)
      out[row] = near->row;
  }
  return out;
}

}  // namespace plab::analysis
