// SPDX-License-Identifier: Apache-2.0
// One event of a torch.profiler file, as it stands there.
#pragma once

#include <string>
#include <string_view>

#include "trace/json_cursor.h"

namespace plab::trace {

// The members of an event that are used, as they stand in the file.
struct ChromeEvent {
  JsonValue ph, cat, name, pid, tid, ts, dur, id;
  // arguments
  JsonValue correlation, device, stream, bytes, sync_kind;
  JsonValue device_type, device_id, reserved, allocated, address;
  JsonValue sequence, forward_thread, call_stack, input_dims, python_id, python_parent;
  std::string collective, launch;  // arguments that are kept together, as the beginning of a JSON object
  bool is_collective = false;
  int not_json = 0;

  void keep_together(std::string_view name, const JsonValue& value);
};

// At `{`. On kOk the cursor stands behind the event, else anywhere.
Step read_event(JsonCursor& cursor, ChromeEvent& event);

// Versions of torch differ in the case of categories and of arguments.
bool same_in_any_case(std::string_view text, std::string_view lower_case);

}  // namespace plab::trace
