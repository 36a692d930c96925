// SPDX-License-Identifier: Apache-2.0
// Every stack seen, stored once: a frame is a node, its parent is the caller's node, and a stack is the node
// of its innermost frame. Not synchronised; the owner locks.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "recorder/python/stacks.h"

namespace plab::recorder {

class StackTrie {
 public:
  StackTrie() { intern(""); }

  uint32_t intern(std::string_view text);

  // Code objects of equal content (file, function, line table) are one code: a loop that compiles the same
  // text again and again adds nothing. `content` is a hash of all of it.
  uint32_t find_code(uint64_t content) const;  // kNoCode where unknown
  uint32_t add_code(uint64_t content, std::string_view file, std::string_view function, int32_t first_line);

  StackId find(StackId parent, uint32_t code, int32_t offset) const;  // 0 where unknown
  StackId add(StackId parent, uint32_t code, int32_t offset, int32_t line);

  size_t node_count() const { return nodes_.size(); }
  StackNode node(StackId id) const;
  size_t string_count() const { return strings_.size(); }
  const std::string& string(uint32_t index) const { return strings_.at(index); }

  static constexpr uint32_t kNoCode = UINT32_MAX;

 private:
  struct Code {
    uint32_t file, function;
    int32_t first_line;
  };
  struct Node {
    StackId parent;
    uint32_t code;
    int32_t line;
    uint32_t depth;
  };
  struct Edge {
    StackId parent;
    uint32_t code;
    int32_t offset;
    bool operator==(const Edge&) const = default;
  };
  struct EdgeHash {
    size_t operator()(const Edge& edge) const noexcept;
  };

  std::deque<std::string> strings_;  // a deque: references stay valid while it grows
  std::unordered_map<std::string_view, uint32_t> string_ids_;
  std::deque<Code> codes_;
  std::unordered_map<uint64_t, uint32_t> code_ids_;
  std::deque<Node> nodes_;  // of id i at index i - 1
  std::unordered_map<Edge, StackId, EdgeHash> edges_;
};

}  // namespace plab::recorder
