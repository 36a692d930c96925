// SPDX-License-Identifier: Apache-2.0
// A library that uses NVTX, reduced to what NVTX's headers do in it: at the first call it looks at
// NVTX_INJECTION64_PATH, loads that file and lets InitializeInjectionNvtx2 fill its function table.
// Compiled twice under two names, it is two libraries.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "recorder/nvtx/abi.h"

using namespace plab::recorder::nvtx;

namespace {

using PushA = int (*)(const char*);
using Pop = int (*)();
using StartA = uint64_t (*)(const char*);
using End = void (*)(uint64_t);
using MarkEx = void (*)(const EventAttributes*);
using DomainPush = int (*)(const void*, const EventAttributes*);
using DomainPop = int (*)(const void*);
using NameCategory = void (*)(const void*, uint32_t, const char*);
using NameThread = void (*)(uint32_t, const char*);
using CreateDomain = const void* (*)(const char*);
using RegisterString = const void* (*)(const void*, const char*);

using PushW = int (*)(const wchar_t*);
using MarkW = void (*)(const wchar_t*);
using CreateDomainW = const void* (*)(const wchar_t*);
using RegisterStringW = const void* (*)(const void*, const wchar_t*);
using NameCategoryW = void (*)(const void*, uint32_t, const wchar_t*);
using NameThreadW = void (*)(uint32_t, const wchar_t*);
using NameStreamA = void (*)(uintptr_t, const char*);
using CreateResource = const void* (*)(const void*, const ResourceAttributes*);

// By module number; a library without CUDA's names has no table of theirs.
constexpr unsigned kSlots = 16;
Function functions[6][kSlots] = {};
Function* slots[6][kSlots];
auto& core = functions[int(Module::kCore)];
auto& core2 = functions[int(Module::kCore2)];
auto& runtime = functions[int(Module::kCudaRuntime)];

int get_table(Module module, FunctionTable* table, unsigned* size) {
  *size = kSlots;
  *table = slots[int(module)];
  return module != Module::kCuda;
}

const ExportTable callbacks{sizeof(ExportTable), get_table};

const void* export_table(uint32_t id) { return id == kExportTableCallbacks ? &callbacks : nullptr; }

void initialise() {
  static bool done = false;
  if (done) return;
  done = true;  // a library that woke up without a tool stays without
  for (unsigned module = 0; module < std::size(slots); ++module) {
    for (unsigned i = 1; i < kSlots; ++i) slots[module][i] = &functions[module][i];
  }
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  void* tool = path ? dlopen(path, RTLD_LAZY) : nullptr;
  if (!tool) return;
  auto* start = reinterpret_cast<int (*)(GetExportTable)>(dlsym(tool, "InitializeInjectionNvtx2"));
  if (!start || start(export_table) != 1) {
    for (auto& module : functions) {
      for (auto& function : module) function = nullptr;
    }
  }
}

intptr_t extension[8] = {};

// The extension has an entry of its own, which is looked for after the other.
void initialise_extension() {
  static bool done = false;
  if (done) return;
  done = true;
  initialise();
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  void* tool = path ? dlopen(path, RTLD_LAZY) : nullptr;
  auto* start =
      tool ? reinterpret_cast<int (*)(ExtensionInfo*)>(dlsym(tool, "InitializeInjectionNvtxExtension"))
           : nullptr;
  ExtensionTable table{0, std::size(extension), extension};
  ExtensionInfo info{3, sizeof info, kPayloadExtension, 0x0104, 1, &table, nullptr, nullptr};
  if (!start || start(&info) != 1) {
    for (auto& slot : extension) slot = 0;
  }
}

template <class F>
F extended(unsigned slot) {
  initialise_extension();
  return reinterpret_cast<F>(extension[slot]);
}

template <class F>
F at(Function* table, unsigned slot) {
  initialise();
  return reinterpret_cast<F>(table[slot]);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int app_attached() { return at<Pop>(core, kRangePop) != nullptr; }
EXPORT int app_push(const char* text) {
  const auto f = at<PushA>(core, kRangePushA);
  return f ? f(text) : -2;
}
EXPORT int app_pop() {
  const auto f = at<Pop>(core, kRangePop);
  return f ? f() : -2;
}
EXPORT uint64_t app_start(const char* text) {
  const auto f = at<StartA>(core, kRangeStartA);
  return f ? f(text) : 0;
}
EXPORT void app_end(uint64_t id) {
  if (const auto f = at<End>(core, kRangeEnd)) f(id);
}
EXPORT void app_mark(const char* text, uint32_t color, int payload_type, uint64_t payload) {
  const EventAttributes a{3, sizeof a, 4, kColorArgb, color, payload_type, 0, payload, kMessageText, text};
  if (const auto f = at<MarkEx>(core, kMarkEx)) f(&a);
}
EXPORT const void* app_domain(const char* name) {
  const auto f = at<CreateDomain>(core2, kDomainCreateA);
  return f ? f(name) : nullptr;
}
EXPORT const void* app_register(const void* domain, const char* text) {
  const auto f = at<RegisterString>(core2, kDomainRegisterStringA);
  return f ? f(domain, text) : nullptr;
}
EXPORT int app_domain_push(const void* domain, const void* message, int message_type) {
  const EventAttributes a{3, sizeof a, 0, 0, 0, 0, 0, 0, message_type, message};
  const auto f = at<DomainPush>(core2, kDomainRangePushEx);
  return f ? f(domain, &a) : -2;
}
EXPORT int app_domain_pop(const void* domain) {
  const auto f = at<DomainPop>(core2, kDomainRangePop);
  return f ? f(domain) : -2;
}
EXPORT void app_name_category(const void* domain, uint32_t category, const char* name) {
  if (const auto f = at<NameCategory>(core2, kDomainNameCategoryA)) f(domain, category, name);
}
EXPORT void app_name_thread(uint32_t thread, const char* name) {
  if (const auto f = at<NameThread>(core, kNameOsThreadA)) f(thread, name);
}
EXPORT int app_push_wide(const wchar_t* text) {
  const auto f = at<PushW>(core, kRangePushW);
  return f ? f(text) : -2;
}
EXPORT void app_mark_wide(const wchar_t* text) {
  if (const auto f = at<MarkW>(core, kMarkW)) f(text);
}
EXPORT const void* app_domain_wide(const wchar_t* name) {
  const auto f = at<CreateDomainW>(core2, kDomainCreateW);
  return f ? f(name) : nullptr;
}
EXPORT const void* app_register_wide(const void* domain, const wchar_t* text) {
  const auto f = at<RegisterStringW>(core2, kDomainRegisterStringW);
  return f ? f(domain, text) : nullptr;
}
EXPORT void app_name_category_wide(const void* domain, uint32_t category, const wchar_t* name) {
  if (const auto f = at<NameCategoryW>(core2, kDomainNameCategoryW)) f(domain, category, name);
}
EXPORT void app_name_thread_wide(uint32_t thread, const wchar_t* name) {
  if (const auto f = at<NameThreadW>(core, kNameOsThreadW)) f(thread, name);
}
EXPORT void app_name_stream(uintptr_t stream, const char* name) {
  if (const auto f = at<NameStreamA>(runtime, kNameCudaStreamA)) f(stream, name);
}
EXPORT const void* app_resource(const void* domain, int type, uint64_t identifier, const char* name) {
  const ResourceAttributes a{3, sizeof a, type, identifier, kMessageText, name};
  const auto f = at<CreateResource>(core2, kDomainResourceCreate);
  return f ? f(domain, &a) : nullptr;
}

// ---- payloads: what NCCL does ----

struct AllReduce {
  uint64_t communicator;
  size_t bytes;
};
EXPORT uint64_t app_schema(const void* domain, uint64_t id) {
  const SchemaEntryAttributes entries[] = {
      {0, 18, "NCCL communicator ID", nullptr, 0, 0, nullptr, nullptr},
      {0, 22, "Message size [bytes]", "in bytes", 0, 8, nullptr, nullptr}};
  const SchemaAttributes a{
      kSchemaType | kSchemaEntries | kSchemaEntryCount | kSchemaBytes | (id ? kSchemaId : 0),
      "not in the mask",
      1,
      7,
      entries,
      2,
      sizeof(AllReduce),
      0,
      id,
      nullptr};
  using Register = uint64_t (*)(const void*, const SchemaAttributes*);
  const auto f = extended<Register>(kPayloadSchemaRegister);
  return f ? f(domain, &a) : 0;
}
EXPORT uint64_t app_enum(const void* domain) {
  const EnumEntryAttributes entries[] = {{"sum", 0, 0}, {"product", 1, 1}};
  const EnumAttributes a{
      kEnumName | kEnumEntries | kEnumEntryCount | kEnumBytes, "reduction", entries, 2, 4, 0, nullptr};
  using Register = uint64_t (*)(const void*, const EnumAttributes*);
  const auto f = extended<Register>(kPayloadEnumRegister);
  return f ? f(domain, &a) : 0;
}
EXPORT int app_push_all_reduce(const void* domain, const void* name, uint64_t schema, uint64_t communicator,
                               uint64_t bytes, uint64_t size_told) {
  const AllReduce payload{communicator, bytes};
  const PayloadData data{schema, size_told, &payload};
  const EventAttributes a{
      3, sizeof a, 0, 0, 0, kPayloadExtended, 1, reinterpret_cast<uint64_t>(&data), kMessageRegistered, name};
  const auto f = at<DomainPush>(core2, kDomainRangePushEx);
  return f ? f(domain, &a) : -2;
}
// A range that is all payload: its schema's first entry is the text.
EXPORT int app_payload_range(const void* domain, const void* name, uint64_t communicator) {
  const SchemaEntryAttributes entry{1 << 10, 80, "text", nullptr, 0, 0, nullptr, nullptr};
  const SchemaAttributes schema{
      kSchemaType | kSchemaEntries | kSchemaEntryCount, nullptr, 1, 0, &entry, 1, 0, 0, 0, nullptr};
  using Register = uint64_t (*)(const void*, const SchemaAttributes*);
  using Act = int (*)(const void*, const PayloadData*, size_t);
  const auto make = extended<Register>(kPayloadSchemaRegister);
  if (!make) return -2;
  const PayloadData pushed{make(domain, &schema), sizeof name, &name};
  const PayloadData popped{99, sizeof communicator, &communicator};
  const int level = extended<Act>(kRangePushPayload)(domain, &pushed, 1);
  return extended<Act>(kRangePopPayload)(domain, &popped, 1) == level ? level : -3;
}
