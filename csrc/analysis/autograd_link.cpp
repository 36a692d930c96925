// SPDX-License-Identifier: Apache-2.0
#include "analysis/autograd_link.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "analysis/gradient_owner.h"

namespace plab::analysis {
namespace {

using trace::kNone;
using trace::kNoSequence;

struct Answer {
  int32_t row = kNone;
  Match match = Match::kUnknown;
};

// The nodes created by one thread, as runs of sequence numbers claimed by a launch.
class NodesOfThread {
 public:
  // A launch outside of the engine's own preparations saw the counter at `next`.
  void claim(int64_t next, int32_t row) {
    if (!seen_ || next < next_) {  // the first launch, or a thread number used again by a later thread
      runs_.clear();
      // One value of the counter does not show whether node next-1 belongs to this launch or an older one.
      if (next > 0) runs_.push_back({next - 1, next - 1, row, row, false});
    } else if (next > next_) {
      runs_.push_back({next_, next - 1, row, latest_ == kNone ? row : latest_, true});
    }
    seen_ = true;
    next_ = next;
  }

  void launched(int32_t row) { latest_ = row; }

  Answer find(int64_t sequence, bool made_late) const {
    const auto run = std::lower_bound(runs_.begin(), runs_.end(), sequence,
                                      [](const Run& r, int64_t wanted) { return r.last < wanted; });
    if (run == runs_.end()) return latest_ == kNone ? Answer{} : Answer{latest_, Match::kNearest};
    if (sequence < run->first) return {};
    if (made_late) return {run->row_before, Match::kInferred};
    return {run->row, run->is_sure && sequence == run->last ? Match::kExact : Match::kInferred};
  }

 private:
  struct Run {
    int64_t first, last;
    int32_t row, row_before;
    bool is_sure;
  };
  std::vector<Run> runs_;  // ascending: the counter only grows
  bool seen_ = false;
  int64_t next_ = 0;
  int32_t latest_ = kNone;
};

std::vector<int32_t> in_time_order(trace::Column<int64_t> time_ns) {
  std::vector<int32_t> order(time_ns.size());
  std::iota(order.begin(), order.end(), 0);
  const auto earlier = [&](int32_t a, int32_t b) { return time_ns[a] < time_ns[b]; };
  if (!std::is_sorted(order.begin(), order.end(), earlier))
    std::stable_sort(order.begin(), order.end(), earlier);
  return order;
}

Links undecided(size_t size) {
  return {std::vector<uint8_t>(size), std::vector<uint8_t>(size), std::vector<int32_t>(size, kNone)};
}

void decide(Links& links, int32_t row, Phase phase, Answer answer) {
  links.phase[row] = static_cast<uint8_t>(phase);
  links.match[row] = static_cast<uint8_t>(answer.match);
  links.forward_row[row] = answer.row;
}

// Nodes created during backward (create_graph) lead to a backward launch, whose own forward launch is then
// used.
Answer follow(const Links& links, Answer answer) {
  if (answer.row == kNone) return answer;
  const auto weaker = std::max(static_cast<uint8_t>(answer.match), links.match[answer.row]);
  return {links.forward_row[answer.row], static_cast<Match>(weaker)};
}

}  // namespace

Links link_by_counter(const LaunchProbes& launches) {
  Links links = undecided(launches.size());
  std::unordered_map<int32_t, NodesOfThread> threads;
  GradientOwner gradients;
  for (const int32_t row : in_time_order(launches.start_ns)) {
    const uint8_t traits = launches.traits[row];
    const int64_t node = launches.node_sequence[row];
    const bool in_backward = node != kNoSequence || (traits & (kIsBackward | kStartsBackward)) != 0;
    const auto phase = in_backward ? Phase::kBackward : Phase::kForward;
    const int32_t thread = launches.thread[row];
    if (!in_backward || (traits & (kOwnStackAnswers | kStartsBackward)) != 0) {
      decide(links, row, phase, {row, Match::kOwn});
    } else if (node == kNoSequence) {
      decide(links, row, phase, {});
    } else if (node < 0) {
      // A hook that runs Python has its line in its own frames.
      const bool runs_python = (traits & kFramesInsideNode) != 0;
      decide(links, row, phase, {runs_python ? kNone : gradients.find(thread), Match::kNoNumber});
    } else {
      const auto maker = threads.find(launches.node_thread[row]);
      const Answer made =
          maker == threads.end() ? Answer{} : maker->second.find(node, (traits & kNodeMadeLate) != 0);
      decide(links, row, phase, follow(links, made));
      gradients.evaluated(thread, launches.node_thread[row], links.forward_row[row]);
    }
    if (!in_backward || (traits & kStartsBackward) != 0) gradients.outside(thread);
    // Only now, because a launch cannot have created the node that it evaluates.
    if (thread == kNone || (traits & kStartsBackward) != 0) continue;
    NodesOfThread& made_here = threads[thread];
    if (launches.next_sequence[row] != kNoSequence) made_here.claim(launches.next_sequence[row], row);
    if (!in_backward) made_here.launched(row);
  }
  return links;
}

}  // namespace plab::analysis
