// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <tuple>

#include "analysis/autograd_link.h"
#include "analysis/containment.h"
#include "analysis/gradient_owner.h"

namespace plab::analysis {
namespace {

using trace::kNone;
using trace::kNoSequence;

// A forward range that created a node.
struct Maker {
  int32_t process;
  int64_t sequence;
  int64_t start_ns;
  int32_t range;
};

bool before(const Maker& a, const Maker& b) {
  return std::tie(a.process, a.sequence, a.start_ns, a.range) <
         std::tie(b.process, b.sequence, b.start_ns, b.range);
}

class OperatorTree {
 public:
  OperatorTree(const OperatorRanges& operators, const std::vector<int32_t>& parent)
      : operators_(operators), parent_(parent), node_in_(parent.size(), kNone) {
    for (int32_t range = 0; range < static_cast<int32_t>(parent.size()); ++range) {
      if (operators.sequence[range] == kNoSequence || is(range, Evaluates::kEngine)) continue;
      if (evaluates_node(range)) {
        if (is(parent[range], Evaluates::kEngine)) node_in_[parent[range]] = range;
      } else {
        makers_.push_back(
            {operators.process[range], operators.sequence[range], operators.ranges.start_ns[range], range});
      }
    }
    std::sort(makers_.begin(), makers_.end(), before);
  }

  // N of such a range is the node evaluated, not one made: where the recorder says so, and in the range
  // `XBackward0, seq = N` directly inside of the engine's.
  bool evaluates_node(int32_t range) const {
    if (is(range, Evaluates::kNode)) return true;
    return operators_.sequence[range] != kNoSequence && is(parent_[range], Evaluates::kEngine);
  }

  // The evaluation of a node that `range` belongs to: the node's own range, or the engine's range around it
  // where the node has none with a number; kNone in forward.
  int32_t evaluation_around(int32_t range) const {
    while (range != kNone && !is(range, Evaluates::kEngine) && !evaluates_node(range)) range = parent_[range];
    return range != kNone && node_in_[range] != kNone ? node_in_[range] : range;
  }

  // The operator that made the node which `evaluation` evaluates: of the ranges with its number the one that
  // started last before it, because an operator shares its number with the operators it is made of. Numbers
  // count per thread and a range does not say of which, so candidates on several threads leave a doubt.
  std::pair<int32_t, Match> maker_of(int32_t evaluation) const {
    const Maker wanted{operators_.process[evaluation], operators_.sequence[evaluation],
                       operators_.ranges.start_ns[evaluation], kNone};
    const auto after = std::lower_bound(makers_.begin(), makers_.end(), wanted, before);
    std::pair<int32_t, Match> found{kNone, Match::kUnknown};
    for (auto maker = after; maker != makers_.begin();) {
      --maker;
      if (maker->process != wanted.process || maker->sequence != wanted.sequence) break;
      if (found.first == kNone) {
        found = {maker->range, Match::kExact};
      } else if (operators_.ranges.track[maker->range] != operators_.ranges.track[found.first]) {
        found.second = Match::kInferred;
        break;
      }
    }
    return found;
  }

  int32_t parent(int32_t range) const { return parent_[range]; }
  int64_t sequence(int32_t range) const { return operators_.sequence[range]; }

 private:
  bool is(int32_t range, Evaluates what) const {
    return range != kNone && operators_.evaluates[range] == static_cast<uint8_t>(what);
  }

  const OperatorRanges& operators_;
  const std::vector<int32_t>& parent_;
  std::vector<int32_t> node_in_;  // per range of the engine: the node's range with its number
  std::vector<Maker> makers_;
};

}  // namespace

RangeLinks link_by_ranges(const OperatorRanges& operators, const trace::Moments& launches,
                          trace::Column<uint8_t> has_stack, trace::Column<uint8_t> traits,
                          int64_t tolerance_ns) {
  Containment nested = contain(operators.ranges, launches, tolerance_ns);
  const OperatorTree tree(operators, nested.parent);
  std::vector<int32_t> order(launches.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return launches.time_ns[a] < launches.time_ns[b]; });

  RangeLinks out;
  out.dropped_ranges = nested.dropped;
  out.links = {std::vector<uint8_t>(launches.size()), std::vector<uint8_t>(launches.size()),
               std::vector<int32_t>(launches.size(), kNone)};
  out.forward_range.assign(launches.size(), kNone);
  // The launch that represents a range: its first one with Python frames, else its first one.
  std::vector<int32_t> stands_for(operators.ranges.size(), kNone);
  GradientOwner gradients;

  for (const int32_t row : order) {
    const int32_t innermost = nested.innermost[row];
    const int32_t evaluation = tree.evaluation_around(innermost);
    const bool starts_backward = (traits[row] & kStartsBackward) != 0;
    const bool in_backward = evaluation != kNone || starts_backward || (traits[row] & kIsBackward) != 0;
    int32_t answer = row;
    Match match = Match::kOwn;
    out.forward_range[row] = innermost;
    if (in_backward && !starts_backward && (traits[row] & kOwnStackAnswers) == 0) {
      answer = kNone;
      match = Match::kUnknown;
      out.forward_range[row] = kNone;
      if (evaluation != kNone && tree.sequence(evaluation) == kNoSequence) {
        match = Match::kNoNumber;  // a hook that runs Python has its line in its own frames
        if ((traits[row] & kFramesInsideNode) == 0) answer = gradients.find(launches.track[row]);
      } else if (evaluation != kNone) {
        const auto [maker, sure] = tree.maker_of(evaluation);
        match = sure;
        out.forward_range[row] = maker;
        // An operator may launch nothing itself; then the operator around it with the same number is used.
        int32_t speaker = maker;
        while (speaker != kNone && stands_for[speaker] == kNone && tree.parent(speaker) != kNone &&
               tree.sequence(tree.parent(speaker)) == tree.sequence(maker)) {
          speaker = tree.parent(speaker);
        }
        const int32_t made_by = speaker == kNone ? kNone : stands_for[speaker];
        if (made_by != kNone) {
          answer = out.links.forward_row[made_by];
          match = std::max(match, static_cast<Match>(out.links.match[made_by]));
        }
        const int32_t made_on = maker == kNone ? kNone : operators.ranges.track[maker];
        gradients.evaluated(launches.track[row], made_on, answer);
      }
    }
    if (!in_backward || starts_backward) gradients.outside(launches.track[row]);
    out.links.phase[row] = static_cast<uint8_t>(in_backward ? Phase::kBackward : Phase::kForward);
    out.links.match[row] = static_cast<uint8_t>(match);
    out.links.forward_row[row] = answer;
    for (int32_t around = innermost; around != kNone; around = tree.parent(around)) {
      int32_t& speaker = stands_for[around];
      if (speaker == kNone || (has_stack[row] != 0 && has_stack[speaker] == 0)) speaker = row;
    }
  }
  out.range = std::move(nested.innermost);
  return out;
}

}  // namespace plab::analysis
