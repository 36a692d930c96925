// SPDX-License-Identifier: Apache-2.0
// A library that uses NVTX, reduced to what NVTX's headers do in it: at the first call it looks at
// NVTX_INJECTION64_PATH, loads that file and lets InitializeInjectionNvtx2 fill its function table.
// Compiled twice under two names, it is two libraries.
#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

#include "recorder/nvtx_abi.h"

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

Function core[16] = {};
Function core2[16] = {};
Function* core_slots[16];
Function* core2_slots[16];

int get_table(Module module, FunctionTable* table, unsigned* size) {
  *size = 16;
  *table = module == Module::kCore ? core_slots : core2_slots;
  return module == Module::kCore || module == Module::kCore2;
}

const ExportTable callbacks{sizeof(ExportTable), get_table};

const void* export_table(uint32_t id) { return id == kExportTableCallbacks ? &callbacks : nullptr; }

void initialise() {
  static bool done = false;
  if (done) return;
  done = true;  // a library that woke up without a tool stays without
  for (unsigned i = 1; i < 16; ++i) core_slots[i] = &core[i], core2_slots[i] = &core2[i];
  const char* path = std::getenv("NVTX_INJECTION64_PATH");
  void* tool = path ? dlopen(path, RTLD_LAZY) : nullptr;
  if (!tool) return;
  auto* start = reinterpret_cast<int (*)(GetExportTable)>(dlsym(tool, "InitializeInjectionNvtx2"));
  if (!start || start(export_table) != 1) {
    for (auto& function : core) function = nullptr;
    for (auto& function : core2) function = nullptr;
  }
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
