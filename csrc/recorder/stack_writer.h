// SPDX-License-Identifier: Apache-2.0
// Writes the Python stacks that a recording uses into its capture file, each node once, callers first.
#pragma once

#include <unordered_map>
#include <vector>

#include "recorder/python_stacks.h"
#include "trace/spool.h"

namespace plab::recorder {

class StackWriter {
 public:
  explicit StackWriter(trace::spool::Writer& writer) : writer_(writer) {}

  // Makes sure that `id` and its callers are (or will be, at the next write_out) in the file.
  void use(StackId id) {
    while (id != 0 && (id >= written_.size() || !written_[id])) {
      if (id >= written_.size()) written_.resize(id + id / 2 + 64);
      written_[id] = true;
      const StackNode node = python_stacks::node(id);
      nodes_.push_back({id, node.parent, string(node.file), string(node.function), node.line, node.first_line,
                        node.depth, 0});
      ++count_;
      id = node.parent;
    }
  }

  void write_out() {
    writer_.append(trace::spool::Kind::kStackNode, nodes_);
    nodes_.clear();
  }

  void reset() {
    written_.clear();
    strings_.clear();
    nodes_.clear();
    count_ = 0;
  }
  size_t count() const { return count_; }

 private:
  uint32_t string(uint32_t index) {
    const auto [found, fresh] = strings_.try_emplace(index, 0);
    if (fresh) found->second = writer_.intern(python_stacks::string(index));
    return found->second;
  }

  trace::spool::Writer& writer_;
  std::vector<bool> written_;
  std::unordered_map<uint32_t, uint32_t> strings_;
  std::vector<trace::spool::StackNode> nodes_;
  size_t count_ = 0;
};

}  // namespace plab::recorder
