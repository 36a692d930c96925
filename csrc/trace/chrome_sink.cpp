// SPDX-License-Identifier: Apache-2.0
#include "trace/chrome_sink.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace plab::trace {
namespace {

constexpr int64_t kFarthestNs = int64_t{1} << 61;  // 73 years; sums of what lies farther overflow
constexpr int64_t kLongestNs =
    7LL * 24 * 3600 * 1'000'000'000;  // CUPTI's counters overflow; a longer event is none
constexpr int64_t kFirstTextIdentity = -(int64_t{1} << 40);

// A decimal number of microseconds as nanoseconds, without a detour over floating point: "4386688496633.432".
std::optional<int64_t> nanoseconds(std::string_view text) {
  const char* at = text.data();
  const char* end = at + text.size();
  const bool negative = at < end && *at == '-';
  if (negative) ++at;
  uint64_t whole = 0;
  const auto [after, error] = std::from_chars(at, end, whole);
  if (error != std::errc{} || whole >= static_cast<uint64_t>(kFarthestNs) / 1000) return std::nullopt;
  int64_t ns = static_cast<int64_t>(whole) * 1000;
  at = after;
  if (at < end && *at == '.') {
    ++at;
    int64_t unit = 100;
    for (; at < end && *at >= '0' && *at <= '9'; ++at, unit /= 10) {
      if (unit == 0) {
        ns += *at >= '5';  // the first digit below a nanosecond
        at = std::find_if_not(at, end, [](char c) { return c >= '0' && c <= '9'; });
        break;
      }
      ns += unit * (*at - '0');
    }
  }
  if (at < end && (*at == 'e' || *at == 'E')) {
    double value = 0;
    const auto [last, failed] = std::from_chars(text.data(), end, value);
    if (failed != std::errc{} || last != end || !(std::abs(value) < 1e15)) return std::nullopt;
    return std::llround(value * 1000);
  }
  if (at != end) return std::nullopt;
  return negative ? -ns : ns;
}

}  // namespace

ChromeSink::Kind ChromeSink::kind_of(std::string_view category) {
  // torch before 1.12 wrote the names of 2021: Operator, Kernel, Memcpy, Memset, Runtime.
  struct Known {
    std::string_view category;
    Kind kind;
  };
  static constexpr Known kKnown[] = {
      {"python_function", Kind::kPython},
      {"cpu_op", Kind::kOperator},
      {"cuda_runtime", Kind::kCall},
      {"kernel", Kind::kKernel},
      {"cuda_driver", Kind::kCall},
      {"gpu_memcpy", Kind::kCopy},
      {"gpu_memset", Kind::kSet},
      {"overhead", Kind::kOverhead},
      {"cuda_sync", Kind::kSync},
      {"operator", Kind::kOperator},
      {"runtime", Kind::kCall},
      {"memcpy", Kind::kCopy},
      {"memset", Kind::kSet},
      {"user_annotation", Kind::kOperator},
  };
  for (const Known& known : kKnown) {
    if (same_in_any_case(category, known.category)) return known.kind;
  }
  return Kind::kOther;
}

void ChromeSink::count_other(std::string_view category) {
  constexpr size_t kMostCategories = 100, kLongestCategory = 100;  // of damage there are any number
  if (const auto known = others.find(category); known != others.end())
    ++known->second;
  else if (others.size() < kMostCategories && category.size() <= kLongestCategory)
    others.emplace(category, 1);
}

void ChromeSink::add(const ChromeEvent& event) {
  damage.not_json += event.not_json;
  const Kind kind = event.cat.is_text() ? kind_of(event.cat.raw) : Kind::kOther;
  if (!event.ph.is_text()) {
    damage.without_phase += kind != Kind::kOther;
    return;
  }
  if (event.ph.raw != "X") {
    if ((event.ph.raw == "s" || event.ph.raw == "f") && same_in_any_case(event.cat.raw, "fwdbwd"))
      add_flow(event);
    if (event.ph.raw == "i" && event.name.raw == "[memory]") add_memory(event);
    return;
  }
  if (kind == Kind::kOther) {
    if (event.cat.is_text()) count_other(event.cat.raw);
    return;
  }
  int64_t start_ns = 0, end_ns = 0;
  if (!times(event, start_ns, end_ns)) {
    ++damage.wild_times;
    return;
  }
  const int32_t name = kind == Kind::kPython ? python_name(event.name) : text(event.name);
  const auto add_to = [&](Slices& table) { add_slice(table, event, start_ns, end_ns, name); };
  switch (kind) {
    case Kind::kKernel:
    case Kind::kCopy:
    case Kind::kSet: {
      GpuSlices& table = tables.operations;
      add_to(table);
      table.kind.push_back(kind == Kind::kKernel ? 0 : kind == Kind::kCopy ? 1 : 2);
      table.device.push_back(integer(event.device));
      table.stream.push_back(integer(event.stream));
      table.correlation.push_back(integer(event.correlation));
      table.bytes.push_back(integer(event.bytes));
      table.collective.push_back(event.is_collective ? tables.texts.number(event.collective + "}") : kNoText);
      table.launch.push_back(event.launch.empty() ? kNoText : tables.texts.number(event.launch + "}"));
      break;
    }
    case Kind::kCall:
      add_to(tables.calls);
      tables.calls.correlation.push_back(integer(event.correlation));
      break;
    case Kind::kOperator:
      add_to(tables.operators);
      tables.operators.sequence.push_back(integer(event.sequence));
      tables.operators.forward_thread.push_back(integer(event.forward_thread));
      tables.operators.call_stack.push_back(event.call_stack.is_text() ? text(event.call_stack) : kNoText);
      tables.operators.input_dims.push_back(event.input_dims.type == JsonValue::Type::kArray
                                                ? tables.texts.number(event.input_dims.raw)
                                                : kNoText);
      break;
    case Kind::kPython:
      add_to(tables.python);
      tables.python.id.push_back(integer(event.python_id));
      tables.python.parent_id.push_back(integer(event.python_parent));
      break;
    case Kind::kSync:
      add_to(tables.syncs);
      tables.syncs.kind.push_back(event.sync_kind.is_text() ? text(event.sync_kind) : name);
      tables.syncs.correlation.push_back(integer(event.correlation));
      break;
    case Kind::kOverhead:
      add_to(tables.overheads);
      break;
    case Kind::kOther:
      break;
  }
}

void ChromeSink::add_slice(Slices& table, const ChromeEvent& event, int64_t start_ns, int64_t end_ns,
                           int32_t name) {
  table.start_ns.push_back(start_ns);
  table.end_ns.push_back(end_ns);
  table.thread.push_back(thread(event));
  table.name.push_back(name);
}

void ChromeSink::add_flow(const ChromeEvent& event) {
  const auto at = nanoseconds(event.ts.raw);
  const int64_t id = integer(event.id);
  if (!at || id == kNoNumber) return;  // arrows are only a second opinion
  tables.flows.id.push_back(id);
  tables.flows.time_ns.push_back(*at);
  tables.flows.thread.push_back(thread(event));
  tables.flows.is_end.push_back(event.ph.raw == "f");
}

void ChromeSink::add_memory(const ChromeEvent& event) {
  constexpr int64_t kHost = 0;
  const auto at = nanoseconds(event.ts.raw);
  const int64_t type = integer(event.device_type), device = integer(event.device_id);
  if (!at || type == kNoNumber || type == kHost || device == kNoNumber) return;
  tables.memory.time_ns.push_back(*at);
  tables.memory.device.push_back(device);
  tables.memory.bytes.push_back(integer(event.bytes));
  tables.memory.reserved.push_back(integer(event.reserved));
  tables.memory.allocated.push_back(integer(event.allocated));
  tables.memory.address.push_back(integer(event.address));
  tables.memory.thread.push_back(thread(event));
}

bool ChromeSink::times(const ChromeEvent& event, int64_t& start_ns, int64_t& end_ns) {
  using enum JsonValue::Type;
  const auto read = [](const JsonValue& value) {
    return value.type == kNumber || value.type == kText ? nanoseconds(value.raw) : std::nullopt;
  };
  const auto start = read(event.ts), length = read(event.dur);
  if (!start || !length || *length < 0 || *length >= kLongestNs) return false;
  damage.times_as_text += event.ts.is_text() || event.dur.is_text();
  start_ns = *start;
  end_ns = *start + *length;
  return true;
}

// Some versions write numbers as text, some with a fraction of zero.
int64_t ChromeSink::integer(const JsonValue& value) {
  using enum JsonValue::Type;
  if (value.type != kNumber && value.type != kText) return kNoNumber;
  const char* end = value.raw.data() + value.raw.size();
  int64_t number = 0;
  const auto [after, error] = std::from_chars(value.raw.data(), end, number);
  if (error == std::errc{} && after == end) return number;
  double real = 0;
  const auto [last, failed] = std::from_chars(value.raw.data(), end, real);
  const bool is_number = last == end && (failed == std::errc{} || failed == std::errc::result_out_of_range);
  if (!is_number || std::isnan(real)) return kNoNumber;
  if (failed == std::errc{} && std::abs(real) < 9.2e18) return static_cast<int64_t>(real);
  ++damage.huge_integers;
  return kNoNumber;
}

int32_t ChromeSink::text(const JsonValue& value) { return tables.texts.number(characters(value, scratch_)); }

// `<built-in method get of dict object at 0x7f..>`: with its address every one would be a name of its own.
int32_t ChromeSink::python_name(const JsonValue& value) {
  std::string_view name = characters(value, scratch_);
  if (name.starts_with('<') && name.ends_with('>')) {
    if (const size_t at = name.rfind(" at 0x"); at != std::string_view::npos) name = name.substr(0, at);
  }
  return tables.texts.number(name);
}

// Some tools name processes and threads by text; each text then stands for one number below all real ones.
int64_t ChromeSink::identity(const JsonValue& value) {
  using enum JsonValue::Type;
  if (value.type == kNumber || value.type == kText) {
    int64_t number = 0;
    const char* end = value.raw.data() + value.raw.size();
    const auto [after, error] = std::from_chars(value.raw.data(), end, number);
    if (error == std::errc{} && after == end && number > kFirstTextIdentity) return number;
  }
  return kFirstTextIdentity - tables.texts.number(value.raw);
}

int32_t ChromeSink::thread(const ChromeEvent& event) {
  const ThreadKey key{identity(event.pid), identity(event.tid)};
  if (last_thread_row_ >= 0 && key == last_thread_) return last_thread_row_;
  const auto [found, is_new] = thread_rows_.try_emplace(key, static_cast<int32_t>(tables.threads.size()));
  if (is_new) tables.threads.push_back(key);
  last_thread_ = key;
  last_thread_row_ = found->second;
  return last_thread_row_;
}

}  // namespace plab::trace
