// SPDX-License-Identifier: Apache-2.0
// The forward line of an AccumulateGrad launch.
//
// Its node has no number, and so no forward launch. But it has the highest priority in the autograd engine: a
// thread evaluates it right after the node that completed the gradient, which belongs to a line that uses the
// parameter. Only launches of nodes are recorded, so the last node before it that launched something is used.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "trace/columns.h"

namespace plab::analysis {

class GradientOwner {
 public:
  // `thread` launched something for a node created by `maker`; its forward launch is `forward_row`, or kNone.
  void evaluated(int32_t thread, int32_t maker, int32_t forward_row) {
    latest_[thread] = {forward_row, maker, outside_[maker]};
  }

  // `thread` launched something outside of nodes: its previous backward pass is over.
  void outside(int32_t thread) { ++outside_[thread]; }

  // The forward row for an AccumulateGrad on `thread`, or kNone.
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
