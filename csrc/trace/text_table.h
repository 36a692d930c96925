// SPDX-License-Identifier: Apache-2.0
// Numbers texts in order of appearance: millions of events have thousands of names.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace plab::trace {

class TextTable {
 public:
  int32_t number(std::string_view text) {
    if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
    const std::string& kept = texts_.emplace_back(text);
    numbers_.emplace(kept, static_cast<int32_t>(numbers_.size()));
    return static_cast<int32_t>(numbers_.size() - 1);
  }

  const std::deque<std::string>& texts() const { return texts_; }

 private:
  std::deque<std::string> texts_;  // a deque: texts stay where they are
  std::unordered_map<std::string_view, int32_t> numbers_;
};

}  // namespace plab::trace
