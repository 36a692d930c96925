// SPDX-License-Identifier: Apache-2.0
// NVTX without a profiler around the process: this module is the injection library itself.
//
// Every library that uses NVTX looks at NVTX_INJECTION64_PATH at its first NVTX call, loads that file and
// asks for InitializeInjectionNvtx2. The recorder points the variable at its own module. A library whose
// first call came before that cannot be reached any more.
#include <string>

#include "recorder/clock.h"
#include "recorder/nvtx_abi.h"
#include "recorder/nvtx_ranges.h"

namespace plab::recorder {
namespace {

using nvtx_ranges::Domain;
using nvtx_ranges::Event;
using trace::spool::RangeType;
using Attributes = const nvtx::EventAttributes*;
using Text = const char*;
using Handle = const void*;

constexpr int kNoTool = -2;  // what NVTX itself returns when nobody listens

std::string to_utf8(const wchar_t* wide) {
  std::string text;
  const auto tail = [&text](uint32_t c, int shift) { text += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  for (; *wide; ++wide) {
    const auto c = static_cast<uint32_t>(*wide);
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += static_cast<char>(0xc0 | c >> 6), tail(c, 0);
    } else if (c < 0x10000) {
      text += static_cast<char>(0xe0 | c >> 12), tail(c, 6), tail(c, 0);
    } else {
      text += static_cast<char>(0xf0 | c >> 18), tail(c, 12), tail(c, 6), tail(c, 0);
    }
  }
  return text;
}

Event event_of(RangeType type, Handle domain, Text text) {
  Event event = nvtx_ranges::make_event(type, static_cast<const Domain*>(domain));
  if (text) event.text = text;
  return event;
}

Event event_of(RangeType type, Handle domain, Attributes attributes) {
  Event event = nvtx_ranges::make_event(type, static_cast<const Domain*>(domain));
  if (!attributes) return event;
  auto& range = event.range;
  if (attributes->category) range.category = attributes->category;
  if (attributes->color_type == nvtx::kColorArgb) range.color = attributes->color;
  range.payload_type = static_cast<uint32_t>(attributes->payload_type);
  range.payload = attributes->payload;
  if (!attributes->message) return event;
  switch (attributes->message_type) {
    case nvtx::kMessageText:
      event.text = static_cast<Text>(attributes->message);
      break;
    case nvtx::kMessageWide:
      event.text = to_utf8(static_cast<const wchar_t*>(attributes->message));
      break;
    case nvtx::kMessageRegistered:
      event.text = static_cast<const nvtx_ranges::RegisteredString*>(attributes->message)->text;
      range.registered = 1;
      break;
  }
  return event;
}

// Nothing may throw into the library that called, and without a recording nothing happens.
template <class Body>
auto guarded(Body body, decltype(body()) otherwise) noexcept -> decltype(body()) {
  if (!nvtx_ranges::recording()) return otherwise;
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

template <class Message>
int push(Handle domain, Message message) noexcept {
  return guarded([&] { return nvtx_ranges::push(event_of(RangeType::kPushPop, domain, message)); }, kNoTool);
}

int pop(Handle domain) noexcept {
  const auto id = domain ? static_cast<const Domain*>(domain)->id : 0;
  return guarded([&] { return nvtx_ranges::pop(id, now_ns()); }, kNoTool);
}

template <class Message>
void mark(Handle domain, Message message) noexcept {
  guarded([&] { return nvtx_ranges::mark(event_of(RangeType::kMark, domain, message)), 0; }, 0);
}

template <class Message>
uint64_t range_start(Handle domain, Message message) noexcept {
  return guarded([&] { return nvtx_ranges::range_start(event_of(RangeType::kStartEnd, domain, message)); },
                 uint64_t{0});
}

void range_end(uint64_t id) noexcept {
  guarded([&] { return nvtx_ranges::range_end(id, now_ns()), 0; }, 0);
}

void name_category(Handle domain, uint32_t category, Text text) noexcept try {
  Event event = event_of(RangeType::kCategory, domain, text);
  event.range.category = category;
  nvtx_ranges::name_category(std::move(event));
} catch (...) {
}

void name_thread(uint32_t thread, Text text) noexcept try {
  nvtx_ranges::name_thread(thread, text);
} catch (...) {
}

Handle create_domain(Text text) noexcept try { return nvtx_ranges::create_domain(text); } catch (...) {
  return nullptr;
}

Handle register_string(Text text) noexcept try { return nvtx_ranges::register_string(text); } catch (...) {
  return nullptr;
}

struct Table {
  nvtx::FunctionTable slots = nullptr;
  unsigned size = 0;

  template <class F>
  void set(unsigned slot, F function) const {
    if (slot < size && slots[slot]) *slots[slot] = reinterpret_cast<nvtx::Function>(+function);
  }
};

bool fill_tables(nvtx::GetExportTable get_export_table) {
  const auto* exported = static_cast<const nvtx::ExportTable*>(get_export_table(nvtx::kExportTableCallbacks));
  if (!exported) return false;
  Table core, core2;
  if (!exported->get_module_function_table(nvtx::Module::kCore, &core.slots, &core.size)) return false;
  if (!exported->get_module_function_table(nvtx::Module::kCore2, &core2.slots, &core2.size)) return false;
  core.set(nvtx::kMarkEx, [](Attributes a) { mark(nullptr, a); });
  core.set(nvtx::kMarkA, [](Text t) { mark(nullptr, t); });
  core.set(nvtx::kRangeStartEx, [](Attributes a) { return range_start(nullptr, a); });
  core.set(nvtx::kRangeStartA, [](Text t) { return range_start(nullptr, t); });
  core.set(nvtx::kRangeEnd, [](uint64_t id) { range_end(id); });
  core.set(nvtx::kRangePushEx, [](Attributes a) { return push(nullptr, a); });
  core.set(nvtx::kRangePushA, [](Text t) { return push(nullptr, t); });
  core.set(nvtx::kRangePop, [] { return pop(nullptr); });
  core.set(nvtx::kNameCategoryA, [](uint32_t category, Text t) { name_category(nullptr, category, t); });
  core.set(nvtx::kNameOsThreadA, [](uint32_t thread, Text t) { name_thread(thread, t); });
  core2.set(nvtx::kDomainMarkEx, [](Handle d, Attributes a) { mark(d, a); });
  core2.set(nvtx::kDomainRangeStartEx, [](Handle d, Attributes a) { return range_start(d, a); });
  core2.set(nvtx::kDomainRangeEnd, [](Handle, uint64_t id) { range_end(id); });
  core2.set(nvtx::kDomainRangePushEx, [](Handle d, Attributes a) { return push(d, a); });
  core2.set(nvtx::kDomainRangePop, [](Handle d) { return pop(d); });
  core2.set(nvtx::kDomainNameCategoryA,
            [](Handle d, uint32_t category, Text t) { name_category(d, category, t); });
  core2.set(nvtx::kDomainRegisterStringA, [](Handle, Text t) { return register_string(t); });
  core2.set(nvtx::kDomainCreateA, [](Text t) { return create_domain(t); });
  return true;
}

}  // namespace
}  // namespace plab::recorder

// Called by every library's NVTX at its first use. 0 (no injection) outside of a recording: a child process
// that inherited the variable, or a library that wakes up after stop().
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    plab::recorder::nvtx::GetExportTable get_export_table) {
  using namespace plab::recorder;
  if (!nvtx_ranges::recording() || !fill_tables(get_export_table)) return 0;
  nvtx_ranges::library_attached();
  return 1;
}
