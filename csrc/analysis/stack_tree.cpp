// SPDX-License-Identifier: Apache-2.0
#include "analysis/stack_tree.h"

#include <unordered_map>

namespace plab::analysis {
namespace {

using trace::kNone;

struct Node {
  int32_t parent, name, module;
  bool operator==(const Node&) const = default;
};

struct NodeHash {
  size_t operator()(const Node& node) const {
    uint64_t mixed =
        static_cast<uint64_t>(static_cast<uint32_t>(node.parent)) << 32 | static_cast<uint32_t>(node.name);
    mixed = (mixed ^ static_cast<uint32_t>(node.module)) * 0x9e3779b97f4a7c15;
    return mixed ^ mixed >> 32;
  }
};

class Folder {
 public:
  Folder(trace::Column<int32_t> name, trace::Column<uint8_t> role) : name_(name), role_(role) {
    tree_.stack.resize(name.size());
    tree_.parent = {0};
    tree_.name = {kNone};
    tree_.module = {kNone};
    module_.assign(name.size(), kNone);
  }

  // `caller` was added before, or is kNone.
  void add(int32_t call, int32_t caller) {
    const int32_t below = caller == kNone ? 0 : tree_.stack[caller];
    const int32_t module = caller == kNone ? kNone : module_[caller];
    const auto role = static_cast<FrameRole>(role_[name_[call]]);
    tree_.stack[call] = below;
    if (role == FrameRole::kModule) {
      module_[call] = name_[call];
    } else if (role == FrameRole::kNone) {
      module_[call] = module;
    } else {
      module_[call] = role == FrameRole::kPassing ? module : kNone;
      tree_.stack[call] = node({below, name_[call], role == FrameRole::kForward ? module : kNone});
    }
  }

  StackTree take() { return std::move(tree_); }

 private:
  int32_t node(const Node& wanted) {
    const auto [found, is_new] = nodes_.try_emplace(wanted, static_cast<int32_t>(tree_.parent.size()));
    if (is_new) {
      tree_.parent.push_back(wanted.parent);
      tree_.name.push_back(wanted.name);
      tree_.module.push_back(wanted.module);
    }
    return found->second;
  }

  trace::Column<int32_t> name_;
  trace::Column<uint8_t> role_;
  StackTree tree_;
  std::vector<int32_t> module_;  // per call the module whose `forward` is still to come
  std::unordered_map<Node, int32_t, NodeHash> nodes_;
};

}  // namespace

std::vector<int32_t> rows_of_parents(trace::Column<int64_t> id, trace::Column<int64_t> parent_id) {
  std::unordered_map<int64_t, int32_t> rows;
  rows.reserve(id.size());
  for (size_t row = 0; row < id.size(); ++row) {
    if (id[row] != trace::kNoSequence) rows[id[row]] = static_cast<int32_t>(row);
  }
  std::vector<int32_t> out(id.size(), kNone);
  for (size_t row = 0; row < id.size(); ++row) {
    if (const auto found = rows.find(parent_id[row]); found != rows.end()) out[row] = found->second;
  }
  return out;
}

StackTree fold_stacks(trace::Column<int32_t> parent, trace::Column<int32_t> name,
                      trace::Column<uint8_t> role) {
  enum class State : uint8_t { kNew, kOnTheWay, kDone };
  std::vector<State> state(name.size(), State::kNew);
  std::vector<int32_t> way;  // calls whose callers come first
  Folder folder(name, role);
  for (size_t row = 0; row < name.size(); ++row) {
    int32_t at = static_cast<int32_t>(row);
    while (at != kNone && state[at] == State::kNew) {
      state[at] = State::kOnTheWay;
      way.push_back(at);
      at = parent[at];
    }
    int32_t caller = at != kNone && state[at] == State::kDone ? at : kNone;
    for (; !way.empty(); way.pop_back()) {
      folder.add(way.back(), caller);
      caller = way.back();
      state[caller] = State::kDone;
    }
  }
  return folder.take();
}

}  // namespace plab::analysis
