// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/stack_trie.h"

namespace plab::recorder {

uint32_t StackTrie::intern(std::string_view text) {
  if (const auto known = string_ids_.find(text); known != string_ids_.end()) return known->second;
  const auto id = static_cast<uint32_t>(strings_.size());
  const std::string& kept = strings_.emplace_back(text);
  string_ids_.emplace(kept, id);
  return id;
}

uint32_t StackTrie::find_code(uint64_t content) const {
  const auto known = code_ids_.find(content);
  return known == code_ids_.end() ? kNoCode : known->second;
}

uint32_t StackTrie::add_code(uint64_t content, std::string_view file, std::string_view function,
                             int32_t first_line) {
  const auto id = static_cast<uint32_t>(codes_.size());
  codes_.push_back({intern(file), intern(function), first_line});
  code_ids_.emplace(content, id);
  return id;
}

StackId StackTrie::find(StackId parent, uint32_t code, int32_t offset) const {
  const auto known = edges_.find({parent, code, offset});
  return known == edges_.end() ? 0 : known->second;
}

StackId StackTrie::add(StackId parent, uint32_t code, int32_t offset, int32_t line) {
  const uint32_t depth = parent == 0 ? 1 : nodes_[parent - 1].depth + 1;
  nodes_.push_back({parent, code, line, depth});
  const auto id = static_cast<StackId>(nodes_.size());
  edges_.emplace(Edge{parent, code, offset}, id);
  return id;
}

StackNode StackTrie::node(StackId id) const {
  const Node& node = nodes_.at(id - 1);
  const Code& code = codes_.at(node.code);
  return {node.parent, code.file, code.function, node.line, code.first_line, node.depth};
}

size_t StackTrie::EdgeHash::operator()(const Edge& edge) const noexcept {
  const uint64_t frame = (uint64_t{edge.code} << 32) | static_cast<uint32_t>(edge.offset);
  const uint64_t mixed = (frame ^ (edge.parent * 0x9E3779B97F4A7C15u)) * 0xD6E8FEB86659FD93u;
  return mixed ^ (mixed >> 32);
}

}  // namespace plab::recorder
