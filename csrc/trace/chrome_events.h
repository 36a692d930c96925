// SPDX-License-Identifier: Apache-2.0
// One event of a torch.profiler file: JSON in, a row of its table out.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trace/chrome_tables.h"
#include "trace/json_cursor.h"

namespace plab::trace {

// The members of an event that are used, as they stand in the file.
struct ChromeEvent {
  JsonValue ph, cat, name, pid, tid, ts, dur, id;
  // arguments
  JsonValue correlation, device, stream, bytes, sequence, forward_thread, call_stack, python_id,
      python_parent;
  JsonValue sync_kind;

  JsonValue input_dims;
  std::string collective, launch;  // arguments that are kept together, as the beginning of a JSON object
  bool is_collective = false;
  int not_json = 0;

  void keep_together(std::string_view name, const JsonValue& value);
};

// At `{`. On kOk the cursor stands behind the event, else anywhere.
Step read_event(JsonCursor& cursor, ChromeEvent& event);

class ChromeEventSink {
 public:
  void add(const ChromeEvent& event);

  ChromeTables tables;
  ChromeDamage damage;

 private:
  enum class Kind : uint8_t { kOther, kKernel, kCopy, kSet, kCall, kOperator, kPython, kOverhead, kSync };

  static Kind kind_of(std::string_view category);
  void add_flow(const ChromeEvent& event);
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
