// SPDX-License-Identifier: Apache-2.0
// CUPTI without the recorder: what it costs by itself, one stage after another, so that the rest is ours.
//
// recorder_overhead.py compiles this, loads it and switches stages between blocks of steps. The buffers are
// the recorder's in number and size, and what comes in them is thrown away.
#include <dlfcn.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "recorder/cupti/abi.h"

using namespace plab::recorder::cupti;

namespace {

enum Stage : int {
  kRuntimeCallbacks = 1,
  kDriverCallbacks = 2,
  kKernels = 4,
  kCopies = 8,
  kOverheads = 16,
  kWaits = 32,
};

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr int kBuffersAhead = 8;
constexpr auto kSynchronization = static_cast<ActivityKind>(38);  // which the recorder never switches on

#define PLAB_DECLARE(name, parameters) Result(*name) parameters = nullptr;
PLAB_CUPTI_REQUIRED(PLAB_DECLARE)
PLAB_CUPTI_OPTIONAL(PLAB_DECLARE)
#undef PLAB_DECLARE

SubscriberHandle subscriber = nullptr;
std::vector<std::pair<Domain, uint32_t>> runtime_calls, driver_calls;
int stage_now = 0;
std::atomic<uint64_t> launches{0};

std::mutex mutex;
std::vector<uint8_t*> buffers;

uint8_t* allocate() {
  return static_cast<uint8_t*>(
      mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
}

void requested(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *most_records = 0;
  *bytes = kBufferBytes;
  const std::lock_guard lock(mutex);
  *buffer = buffers.empty() ? allocate() : buffers.back();
  if (!buffers.empty()) buffers.pop_back();
}

void completed(void*, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  std::memset(buffer, 0, valid);
  const std::lock_guard lock(mutex);
  buffers.push_back(buffer);
}

// A body as empty as it can be; it counts in the one stage that is there to count.
void on_call(void*, Domain, uint32_t, const void* data) {
  if (stage_now == kRuntimeCallbacks && static_cast<const CallbackData*>(data)->site == Site::kEnter)
    launches.fetch_add(1, std::memory_order_relaxed);
}

void collect_calls(Domain domain, const std::string& prefix,
                   std::vector<std::pair<Domain, uint32_t>>* calls) {
  for (uint32_t id = 1; id < 2048; ++id) {
    const char* text = nullptr;
    if (GetCallbackName(domain, id, &text) != kSuccess || !text) continue;
    for (const char* what : {"Launch", "GraphLaunch", "Memcpy", "Memset", "StreamSynchronize",
                             "EventSynchronize", "DeviceSynchronize", "CtxSynchronize"}) {
      if (std::string(text).rfind(prefix + what, 0) == 0) calls->push_back({domain, id});
    }
  }
}

void switch_calls(const std::vector<std::pair<Domain, uint32_t>>& calls, bool on) {
  for (const auto& [domain, id] : calls) EnableCallback(on, subscriber, domain, id);
}

void switch_kinds(std::initializer_list<ActivityKind> kinds, bool on) {
  for (const ActivityKind kind : kinds) on ? ActivityEnable(kind) : ActivityDisable(kind);
}

}  // namespace

extern "C" {

// Returns CUPTI's result code, or -1 where the library is not one.
int stages_open(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return -1;
#define PLAB_BIND(name, parameters) name = reinterpret_cast<decltype(name)>(dlsym(library, "cupti" #name));
  PLAB_CUPTI_REQUIRED(PLAB_BIND)
  PLAB_CUPTI_OPTIONAL(PLAB_BIND)
#undef PLAB_BIND
  if (!Subscribe) return -1;
  if (const Result code = Subscribe(&subscriber, &on_call, nullptr); code != kSuccess) return code;
  uint8_t zeroed = 1;
  size_t bytes = sizeof zeroed;
  ActivitySetAttribute(kAttributeZeroedBuffer, &bytes, &zeroed);
  for (int i = 0; i < kBuffersAhead; ++i) buffers.push_back(allocate());
  if (const Result code = ActivityRegisterCallbacks(&requested, &completed); code != kSuccess) return code;
  collect_calls(Domain::kRuntime, "cuda", &runtime_calls);
  collect_calls(Domain::kDriver, "cu", &driver_calls);
  return kSuccess;
}

void stages_switch(int wanted) {
  const auto changes = [wanted](int stage) { return ((wanted ^ stage_now) & stage) != 0; };
  if (changes(kRuntimeCallbacks)) switch_calls(runtime_calls, wanted & kRuntimeCallbacks);
  if (changes(kDriverCallbacks)) switch_calls(driver_calls, wanted & kDriverCallbacks);
  if (changes(kKernels)) switch_kinds({ActivityKind::kConcurrentKernel}, wanted & kKernels);
  if (changes(kCopies)) switch_kinds({ActivityKind::kMemcpy, ActivityKind::kMemset}, wanted & kCopies);
  if (changes(kOverheads)) switch_kinds({ActivityKind::kOverhead}, wanted & kOverheads);
  if (changes(kWaits)) switch_kinds({kSynchronization}, wanted & kWaits);
  stage_now = wanted;
}

uint64_t stages_launches() { return launches.exchange(0); }

void stages_close() {
  stages_switch(0);
  ActivityFlushAll(kFlushForced);
  Unsubscribe(subscriber);
}

}  // extern "C"
