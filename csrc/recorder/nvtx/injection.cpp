// SPDX-License-Identifier: Apache-2.0
// NVTX without a profiler around the process: this module is the injection library itself.
//
// Every library that uses NVTX looks at NVTX_INJECTION64_PATH at its first NVTX call, loads that file and
// asks for InitializeInjectionNvtx2. The recorder points the variable at its own module. A library whose
// first call came earlier cannot be attached any more.
#include <algorithm>
#include <string>

#include "recorder/nvtx/abi.h"
#include "recorder/nvtx/names.h"
#include "recorder/nvtx/payloads.h"
#include "recorder/nvtx/ranges.h"
#include "recorder/system/clock.h"

namespace plab::recorder {
namespace {

using nvtx_names::Domain;
using nvtx_ranges::Event;
using spool::RangeType;
using Attributes = const nvtx::EventAttributes*;
using Text = const char*;
using Wide = const wchar_t*;
using Handle = const void*;

constexpr int kNoTool = -2;  // what NVTX itself returns without a tool

std::string to_utf8(Text text) { return text ? text : ""; }

std::string to_utf8(Wide wide) {
  std::string text;
  if (!wide) return text;
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

// What a message is, by its type; a registered one says so.
std::string message_of(int32_t type, const void* message, uint32_t* registered) {
  if (!message) return "";
  switch (type) {
    case nvtx::kMessageText:
      return static_cast<Text>(message);
    case nvtx::kMessageWide:
      return to_utf8(static_cast<Wide>(message));
    case nvtx::kMessageRegistered:
      *registered = 1;
      return static_cast<const nvtx_names::RegisteredString*>(message)->text;
  }
  return "";
}

uint32_t id_of(Handle domain) { return domain ? static_cast<const Domain*>(domain)->id : 0; }

template <class Character>
Event event_of(RangeType type, Handle domain, const Character* text) {
  Event event = nvtx_ranges::make_event(type, static_cast<const Domain*>(domain));
  event.text = to_utf8(text);
  return event;
}

struct Payloads {
  const nvtx::PayloadData* first;
  size_t count;
};

Event event_of(RangeType type, Handle domain, Payloads payloads) {
  Event event = nvtx_ranges::make_event(type, static_cast<const Domain*>(domain));
  event.text = nvtx_payloads::message(id_of(domain), payloads.first, payloads.count);
  event.data = nvtx_payloads::copy(id_of(domain), payloads.first, payloads.count);
  return event;
}

Event event_of(RangeType type, Handle domain, Attributes attributes) {
  Event event = nvtx_ranges::make_event(type, static_cast<const Domain*>(domain));
  if (!attributes) return event;
  auto& range = event.range;
  if (attributes->category) range.category = attributes->category;
  if (attributes->color_type == nvtx::kColorArgb) range.color = attributes->color;
  event.text = message_of(attributes->message_type, attributes->message, &range.registered);
  if (attributes->payload_type == nvtx::kPayloadExtended) {
    const auto* payloads = reinterpret_cast<const nvtx::PayloadData*>(attributes->payload);
    event.data =
        nvtx_payloads::copy(range.domain, payloads, static_cast<size_t>(std::max(attributes->payloads, 0)));
  } else {
    range.payload_type = static_cast<uint32_t>(attributes->payload_type);
    range.payload = attributes->payload;
  }
  return event;
}

// No exception may reach the calling library. Without a recording nothing happens.
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

int pop(Handle domain, Payloads payloads = {}) noexcept {
  const uint32_t id = id_of(domain);
  return guarded(
      [&] { return nvtx_ranges::pop(id, now_ns(), nvtx_payloads::copy(id, payloads.first, payloads.count)); },
      kNoTool);
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

void range_end(Handle domain, uint64_t id, Payloads payloads = {}) noexcept {
  guarded(
      [&] {
        const std::string data = nvtx_payloads::copy(id_of(domain), payloads.first, payloads.count);
        return nvtx_ranges::range_end(id, now_ns(), data), 0;
      },
      0);
}

template <class Character>
void name_category(Handle domain, uint32_t category, const Character* text) noexcept try {
  nvtx_names::name_category(id_of(domain), category, to_utf8(text));
} catch (...) {
}

template <class Character>
void name_thread(uint32_t thread, const Character* text) noexcept try {
  nvtx_names::name_thread(thread, to_utf8(text));
} catch (...) {
}

template <class Character>
Handle create_domain(const Character* text) noexcept try {
  return nvtx_names::create_domain(to_utf8(text));
} catch (...) {
  return nullptr;
}

template <class Character>
Handle register_string(const Character* text) noexcept try {
  return nvtx_names::register_string(to_utf8(text));
} catch (...) {
  return nullptr;
}

Handle create_resource(Handle domain, const nvtx::ResourceAttributes* attributes) noexcept try {
  if (!attributes) return nullptr;
  uint32_t registered = 0;
  std::string text = message_of(attributes->message_type, attributes->message, &registered);
  if (attributes->type == nvtx::kResourceThread) {
    nvtx_names::name_thread(static_cast<uint32_t>(attributes->identifier), text);
  }
  return nvtx_names::name_resource(id_of(domain), static_cast<uint32_t>(attributes->type),
                                   attributes->identifier, std::move(text));
} catch (...) {
  return nullptr;
}

template <class Character>
void name_resource(nvtx::ResourceType type, uint64_t identifier, const Character* text) noexcept try {
  nvtx_names::name_resource(0, type, identifier, to_utf8(text));
} catch (...) {
}

uint64_t register_schema(Handle domain, const nvtx::SchemaAttributes* attributes) noexcept try {
  return attributes ? nvtx_payloads::register_schema(id_of(domain), *attributes) : 0;
} catch (...) {
  return 0;
}

uint64_t register_enum(Handle domain, const nvtx::EnumAttributes* attributes) noexcept try {
  return attributes ? nvtx_payloads::register_enum(id_of(domain), *attributes) : 0;
} catch (...) {
  return 0;
}

struct Table {
  nvtx::FunctionTable slots = nullptr;
  unsigned size = 0;

  template <class F>
  void set(unsigned slot, F function) const {
    if (slot < size && slots[slot]) *slots[slot] = reinterpret_cast<nvtx::Function>(+function);
  }
};

Table table_of(const nvtx::ExportTable& exported, nvtx::Module module) {
  Table table;
  if (!exported.get_module_function_table(module, &table.slots, &table.size)) return {};
  return table;
}

void fill_core(const Table& core) {
  core.set(nvtx::kMarkEx, [](Attributes a) { mark(nullptr, a); });
  core.set(nvtx::kMarkA, [](Text t) { mark(nullptr, t); });
  core.set(nvtx::kMarkW, [](Wide t) { mark(nullptr, t); });
  core.set(nvtx::kRangeStartEx, [](Attributes a) { return range_start(nullptr, a); });
  core.set(nvtx::kRangeStartA, [](Text t) { return range_start(nullptr, t); });
  core.set(nvtx::kRangeStartW, [](Wide t) { return range_start(nullptr, t); });
  core.set(nvtx::kRangeEnd, [](uint64_t id) { range_end(nullptr, id); });
  core.set(nvtx::kRangePushEx, [](Attributes a) { return push(nullptr, a); });
  core.set(nvtx::kRangePushA, [](Text t) { return push(nullptr, t); });
  core.set(nvtx::kRangePushW, [](Wide t) { return push(nullptr, t); });
  core.set(nvtx::kRangePop, [] { return pop(nullptr); });
  core.set(nvtx::kNameCategoryA, [](uint32_t category, Text t) { name_category(nullptr, category, t); });
  core.set(nvtx::kNameCategoryW, [](uint32_t category, Wide t) { name_category(nullptr, category, t); });
  core.set(nvtx::kNameOsThreadA, [](uint32_t thread, Text t) { name_thread(thread, t); });
  core.set(nvtx::kNameOsThreadW, [](uint32_t thread, Wide t) { name_thread(thread, t); });
}

void fill_domains(const Table& core2) {
  core2.set(nvtx::kDomainMarkEx, [](Handle d, Attributes a) { mark(d, a); });
  core2.set(nvtx::kDomainRangeStartEx, [](Handle d, Attributes a) { return range_start(d, a); });
  core2.set(nvtx::kDomainRangeEnd, [](Handle d, uint64_t id) { range_end(d, id); });
  core2.set(nvtx::kDomainRangePushEx, [](Handle d, Attributes a) { return push(d, a); });
  core2.set(nvtx::kDomainRangePop, [](Handle d) { return pop(d); });
  core2.set(nvtx::kDomainResourceCreate,
            [](Handle d, const nvtx::ResourceAttributes* a) { return create_resource(d, a); });
  core2.set(nvtx::kDomainResourceDestroy, [](Handle) {});  // the name stays: rows may carry it
  core2.set(nvtx::kDomainNameCategoryA, [](Handle d, uint32_t c, Text t) { name_category(d, c, t); });
  core2.set(nvtx::kDomainNameCategoryW, [](Handle d, uint32_t c, Wide t) { name_category(d, c, t); });
  core2.set(nvtx::kDomainRegisterStringA, [](Handle, Text t) { return register_string(t); });
  core2.set(nvtx::kDomainRegisterStringW, [](Handle, Wide t) { return register_string(t); });
  core2.set(nvtx::kDomainCreateA, [](Text t) { return create_domain(t); });
  core2.set(nvtx::kDomainCreateW, [](Wide t) { return create_domain(t); });
}

// The two slots that give a name to one kind of thing, which is known by an `Id`.
template <nvtx::ResourceType kType, class Id>
void fill_names(const Table& table, unsigned narrow, unsigned wide) {
  table.set(narrow, [](Id id, Text t) { name_resource(kType, uint64_t(id), t); });
  table.set(wide, [](Id id, Wide t) { name_resource(kType, uint64_t(id), t); });
}

bool fill_tables(nvtx::GetExportTable get_export_table) {
  const auto* exported = static_cast<const nvtx::ExportTable*>(get_export_table(nvtx::kExportTableCallbacks));
  if (!exported) return false;
  const Table core = table_of(*exported, nvtx::Module::kCore);
  const Table core2 = table_of(*exported, nvtx::Module::kCore2);
  if (!core.slots || !core2.slots) return false;
  fill_core(core);
  fill_domains(core2);
  const Table driver = table_of(*exported, nvtx::Module::kCuda);
  fill_names<nvtx::kResourceCuDevice, int>(driver, nvtx::kNameCuDeviceA, nvtx::kNameCuDeviceW);
  fill_names<nvtx::kResourceCuContext, uintptr_t>(driver, nvtx::kNameCuContextA, nvtx::kNameCuContextW);
  fill_names<nvtx::kResourceCuStream, uintptr_t>(driver, nvtx::kNameCuStreamA, nvtx::kNameCuStreamW);
  fill_names<nvtx::kResourceCuEvent, uintptr_t>(driver, nvtx::kNameCuEventA, nvtx::kNameCuEventW);
  const Table runtime = table_of(*exported, nvtx::Module::kCudaRuntime);
  fill_names<nvtx::kResourceCudaDevice, int>(runtime, nvtx::kNameCudaDeviceA, nvtx::kNameCudaDeviceW);
  fill_names<nvtx::kResourceCudaStream, uintptr_t>(runtime, nvtx::kNameCudaStreamA, nvtx::kNameCudaStreamW);
  fill_names<nvtx::kResourceCudaEvent, uintptr_t>(runtime, nvtx::kNameCudaEventA, nvtx::kNameCudaEventW);
  return true;
}

bool fill_extension(nvtx::ExtensionInfo& info) {
  if (info.module != nvtx::kPayloadExtension || info.table_count == 0 || !info.tables) return false;
  const nvtx::ExtensionTable& table = info.tables[0];
  const auto set = [&table](unsigned slot, auto function) {
    if (slot < table.slot_count) table.slots[slot] = reinterpret_cast<intptr_t>(+function);
  };
  using Data = const nvtx::PayloadData*;
  set(nvtx::kPayloadSchemaRegister,
      [](Handle d, const nvtx::SchemaAttributes* a) { return register_schema(d, a); });
  set(nvtx::kPayloadEnumRegister,
      [](Handle d, const nvtx::EnumAttributes* a) { return register_enum(d, a); });
  set(nvtx::kMarkPayload, [](Handle d, Data p, size_t n) { mark(d, Payloads{p, n}); });
  set(nvtx::kRangePushPayload, [](Handle d, Data p, size_t n) { return push(d, Payloads{p, n}); });
  set(nvtx::kRangePopPayload, [](Handle d, Data p, size_t n) { return pop(d, Payloads{p, n}); });
  set(nvtx::kRangeStartPayload, [](Handle d, Data p, size_t n) { return range_start(d, Payloads{p, n}); });
  set(nvtx::kRangeEndPayload, [](Handle d, uint64_t id, Data p, size_t n) {
    range_end(d, id, Payloads{p, n});
  });
  return true;
}

}  // namespace
}  // namespace plab::recorder

// Called by every library's NVTX at its first use. Returns 0 (no injection) if no recording is expected: in a child
// process that inherited the variable, or for a library whose first call comes after stop().
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    plab::recorder::nvtx::GetExportTable get_export_table) {
  using namespace plab::recorder;
  if (!nvtx_ranges::expected() || !fill_tables(get_export_table)) return 0;
  nvtx_ranges::library_attached();
  return 1;
}

// The same for NVTX extensions. Only the payload extension is supported.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(
    plab::recorder::nvtx::ExtensionInfo* info) {
  using namespace plab::recorder;
  return info && nvtx_ranges::expected() && fill_extension(*info);
}
