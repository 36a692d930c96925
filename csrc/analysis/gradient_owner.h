// SPDX-License-Identifier: Apache-2.0
// Whose gradient AccumulateGrad adds up.
//
// Its node has no number, and so no forward launch. But no node is more urgent to autograd's engine: a thread
// evaluates it right after the node that completed the gradient, which stands on a line where the parameter
// is used. Only the launches of nodes are seen, so the answer is the last node before it that launched
// something.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "trace/columns.h"

namespace plab::analysis {

class GradientOwner {
 public:
  // `thread` launched something for a node that `maker` made; `forward_row` answers for it, or kNone.
  void evaluated(int32_t thread, int32_t maker, int32_t forward_row) {
    latest_[thread] = {forward_row, maker, outside_[maker]};
  }

  // `thread` launched something outside of its nodes: what it asked backward for before is over.
  void outside(int32_t thread) { ++outside_[thread]; }

  // The row that answers for an AccumulateGrad on `thread`, or kNone.
  int32_t find(int32_t thread) const {
    const auto latest = latest_.find(thread);
    if (thread == trace::kNone || latest == latest_.end()) return trace::kNone;
    const auto now = outside_.find(latest->second.maker);
    return now->second == latest->second.outside ? latest->second.forward_row : trace::kNone;
  }

 private:
  struct Latest {
    int32_t forward_row, maker;
    int64_t outside;  // what the maker had launched outside of backward by then
  };
  std::unordered_map<int32_t, Latest> latest_;
  std::unordered_map<int32_t, int64_t> outside_;
};

}  // namespace plab::analysis
