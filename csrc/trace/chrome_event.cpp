// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_event.h"

namespace plab::trace {
namespace {

constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

struct Field {
  std::string_view name;
  JsonValue ChromeEvent::*value;
};

constexpr Field kMembers[] = {
    {"ph", &ChromeEvent::ph},   {"cat", &ChromeEvent::cat}, {"name", &ChromeEvent::name},
    {"pid", &ChromeEvent::pid}, {"tid", &ChromeEvent::tid}, {"ts", &ChromeEvent::ts},
    {"dur", &ChromeEvent::dur}, {"id", &ChromeEvent::id},
};

constexpr Field kArguments[] = {
    {"correlation", &ChromeEvent::correlation},
    {"device", &ChromeEvent::device},
    {"stream", &ChromeEvent::stream},
    {"bytes", &ChromeEvent::bytes},
    {"sequence number", &ChromeEvent::sequence},
    {"fwd thread id", &ChromeEvent::forward_thread},
    {"call stack", &ChromeEvent::call_stack},
    {"input dims", &ChromeEvent::input_dims},
    {"python id", &ChromeEvent::python_id},
    {"python parent id", &ChromeEvent::python_parent},
    {"cuda_sync_kind", &ChromeEvent::sync_kind},
    {"device type", &ChromeEvent::device_type},
    {"device id", &ChromeEvent::device_id},
    {"total reserved", &ChromeEvent::reserved},
    {"total allocated", &ChromeEvent::allocated},
    {"addr", &ChromeEvent::address},
};

// What a communication kernel says of its collective, and any kernel of its launch.
constexpr std::string_view kCollectiveName = "collective name";
constexpr std::string_view kOfCollective[] = {
    kCollectiveName, "seq",        "in msg nelems",      "out msg nelems",
    "dtype",         "group size", "process group name", "process group ranks"};
constexpr std::string_view kOfLaunch[] = {"grid", "block", "registers per thread", "shared memory"};

template <class Visit>
Step each_member(JsonCursor& cursor, Visit visit) {
  if (const Step step = cursor.take('{'); step != Step::kOk) return step;
  if (cursor.peek() == '}') return cursor.take('}');
  JsonValue name, value;
  for (bool more = true; more;) {
    if (const Step step = cursor.name(name); step != Step::kOk) return step;
    if (const Step step = visit(name, value); step != Step::kOk) return step;
    if (const Step step = cursor.next_member(more); step != Step::kOk) return step;
  }
  return Step::kOk;
}

}  // namespace

bool same_in_any_case(std::string_view text, std::string_view lower_case) {
  if (text.size() != lower_case.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (lower(text[i]) != lower_case[i]) return false;
  }
  return true;
}

Step read_event(JsonCursor& cursor, ChromeEvent& event) {
  const auto keep = [&event](const JsonValue& value, JsonValue* where) {
    event.not_json += value.type == JsonValue::Type::kNoJson || value.has_controls;
    if (where != nullptr) *where = value;
  };
  const auto argument = [&](const JsonValue& name, JsonValue& value) {
    if (const Step step = cursor.value(value); step != Step::kOk) return step;
    JsonValue* where = nullptr;
    for (const Field& field : kArguments) {
      if (same_in_any_case(name.raw, field.name)) where = &(event.*field.value);
    }
    keep(value, where);
    if (where == nullptr) event.keep_together(name.raw, value);
    return Step::kOk;
  };
  return each_member(cursor, [&](const JsonValue& name, JsonValue& value) {
    if (name.raw == "args" && cursor.peek() == '{') return each_member(cursor, argument);
    if (const Step step = cursor.value(value); step != Step::kOk) return step;
    JsonValue* where = nullptr;
    for (const Field& field : kMembers) {
      if (name.raw == field.name) where = &(event.*field.value);
    }
    keep(value, where);
    return Step::kOk;
  });
}

void ChromeEvent::keep_together(std::string_view name, const JsonValue& value) {
  using enum JsonValue::Type;
  const bool plain =
      value.type == kNumber || value.type == kArray || (value.is_text() && !value.has_controls);
  if (!plain) return;
  const auto add = [&](std::string& object, std::string_view known) {
    object += object.empty() ? "{\"" : ",\"";
    object += known;
    object += value.is_text() ? "\":\"" : "\":";
    object += value.raw;
    if (value.is_text()) object += '"';
  };
  for (const std::string_view known : kOfCollective) {
    if (same_in_any_case(name, known)) add(collective, known);
  }
  for (const std::string_view known : kOfLaunch) {
    if (same_in_any_case(name, known)) add(launch, known);
  }
  is_collective |= same_in_any_case(name, kCollectiveName);
}

}  // namespace plab::trace
