// SPDX-License-Identifier: Apache-2.0
#include "analysis/correlate.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace plab::analysis {
namespace {

struct Call {
  int64_t id;
  int64_t start_ns;
  int32_t process;
  int32_t row;
};

bool before(const Call& a, const Call& b) {
  return std::tie(a.process, a.id, a.start_ns, a.row) < std::tie(b.process, b.id, b.start_ns, b.row);
}

}  // namespace

std::vector<int32_t> call_of(const trace::Correlations& operations, const trace::Correlations& calls,
                             trace::Column<int64_t> call_start_ns) {
  std::vector<Call> sorted(calls.size());
  for (size_t row = 0; row < calls.size(); ++row) {
    sorted[row] = {calls.id[row], call_start_ns[row], calls.process[row], static_cast<int32_t>(row)};
  }
  if (!std::is_sorted(sorted.begin(), sorted.end(), before)) std::sort(sorted.begin(), sorted.end(), before);

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
