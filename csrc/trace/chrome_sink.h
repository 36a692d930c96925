// SPDX-License-Identifier: Apache-2.0
// Where events of a torch.profiler file become rows of its tables.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "trace/chrome_event.h"
#include "trace/chrome_tables.h"

namespace plab::trace {

class ChromeSink {
 public:
  void add(const ChromeEvent& event);

  ChromeTables tables;
  ChromeDamage damage;
  // Complete events of categories that are in no table, by category.
  std::map<std::string, int64_t, std::less<>> others;

 private:
  enum class Kind : uint8_t { kOther, kKernel, kCopy, kSet, kCall, kOperator, kPython, kOverhead, kSync };

  static Kind kind_of(std::string_view category);
  void count_other(std::string_view category);
  void add_flow(const ChromeEvent& event);
  void add_memory(const ChromeEvent& event);
  bool times(const ChromeEvent& event, int64_t& start_ns, int64_t& end_ns);
  int64_t integer(const JsonValue& value);
  int32_t text(const JsonValue& value);
  int32_t python_name(const JsonValue& value);
  int64_t identity(const JsonValue& value);
  int32_t thread(const ChromeEvent& event);
  void add_slice(Slices& table, const ChromeEvent& event, int64_t start_ns, int64_t end_ns, int32_t name);

  std::map<ThreadKey, int32_t> thread_rows_;
  ThreadKey last_thread_{};
  int32_t last_thread_row_ = -1;
  std::string scratch_;
};

}  // namespace plab::trace
