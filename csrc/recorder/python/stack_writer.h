// SPDX-License-Identifier: Apache-2.0
// Writes the Python stacks that a recording uses into its capture file, each node once, callers first.
#pragma once

#include <new>
#include <unordered_map>
#include <vector>

#include "recorder/python/stacks.h"
#include "recorder/spool/writer.h"

namespace plab::recorder {

class StackWriter {
 public:
  explicit StackWriter(spool::Writer& writer) : writer_(writer) {}

  // Makes sure that `id` and its callers are (or will be, at the next write_out) in the file. Without memory
  // it throws, and then none of them is.
  void use(StackId id) {
    const size_t before = nodes_.size();
    try {
      for (; id != 0 && !is_written(id); id = nodes_.back().parent) {
        if (id >= written_.size()) written_.resize(id + id / 2 + 64);
        const StackNode node = python_stacks::node(id);
        nodes_.push_back({id, node.parent, string(node.file), string(node.function), node.line,
                          node.first_line, node.depth, 0});
        written_[id] = true;
      }
    } catch (...) {
      for (; nodes_.size() > before; nodes_.pop_back()) written_[nodes_.back().id] = false;
      throw;
    }
  }

  void write_out() {
    writer_.append(nodes_);
    count_ += nodes_.size();
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
  bool is_written(StackId id) const { return id < written_.size() && written_[id]; }

  uint32_t string(uint32_t index) {
    if (const auto found = strings_.find(index); found != strings_.end()) return found->second;
    const uint32_t text = writer_.intern(python_stacks::string(index));
    if (text == spool::kNone) throw std::bad_alloc();
    return strings_.emplace(index, text).first->second;
  }

  spool::Writer& writer_;
  std::vector<bool> written_;
  std::unordered_map<uint32_t, uint32_t> strings_;
  std::vector<spool::StackNode> nodes_;
  size_t count_ = 0;
};

}  // namespace plab::recorder
