// SPDX-License-Identifier: Apache-2.0
// A CUPTI without a GPU: keeps the recorder's callbacks and buffers and lets a test say what happens.
//
// A test calls fake_call / fake_kernel / ... through ctypes, which releases the GIL, so the recorder's real
// callback walks the real Python stack of the test, exactly as inside a CUDA call. Records have the layout
// and the sizes of CUDA 13.0.
#include <dlfcn.h>
#include <pthread.h>
#include <x86intrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "other_code.h"
#include "recorder/cupti/abi.h"
#include "records.h"

using namespace plab::recorder::cupti;

namespace {

const std::map<std::pair<int, uint32_t>, const char*> kNames = {
    {{2, 20}, "cudaMalloc_v3020"},
    {{2, 41}, "cudaMemcpyAsync_v3020"},
    {{2, 51}, "cudaMemsetAsync_v3020"},
    {{2, 131}, "cudaStreamSynchronize_v3020"},
    {{2, 137}, "cudaEventSynchronize_v3020"},
    {{2, 147}, "cudaStreamWaitEvent_v3020"},
    {{2, 165}, "cudaDeviceSynchronize_v3020"},
    {{2, 10}, "cudaGetLastError_v3020"},
    {{2, 211}, "cudaLaunchKernel_v7000"},
    {{2, 311}, "cudaGraphLaunch_v10000"},
    {{2, 313}, "cudaStreamBeginCapture_v10000"},
    {{2, 316}, "cudaStreamEndCapture_v10000"},
    {{1, 514}, "cuStreamBeginCapture_v2"},
    {{1, 480}, "cuStreamEndCapture"},
    {{1, 307}, "cuLaunchKernel"},
    {{1, 652}, "cuLaunchKernelEx"},
    {{1, 527}, "cuLaunchHostFunc"},
};

struct State {
  std::mutex mutex;
  uint32_t version = 130000;
  CallbackFunction callback = nullptr;
  void* userdata = nullptr;
  bool subscribed = false;
  std::string other_subscriber;
  std::map<std::string, int, std::less<>> failures;  // function -> result
  std::set<std::pair<int, uint32_t>> callbacks;
  std::set<int> kinds;
  BufferRequested requested = nullptr;
  BufferCompleted completed = nullptr;
  uint8_t* buffer = nullptr;
  size_t size = 0, used = 0;
  uint64_t api_calls = 0, dropped = 0;
  uint32_t next_correlation = 1;
  std::deque<std::string> names;
};
State state;

Result entered(const char* function) {
  std::lock_guard lock(state.mutex);
  ++state.api_calls;
  // Looked up without memory of its own: CUPTI is C.
  const auto found = state.failures.find(std::string_view(function));
  return found == state.failures.end() ? kSuccess : found->second;
}

void put(const void* record, size_t known_bytes, const void* tail = nullptr, size_t tail_bytes = 0) {
  const int kind = *static_cast<const int*>(record);
  const size_t bytes = bytes_of(kind);
  uint8_t* full = nullptr;
  size_t full_size = 0, full_used = 0;
  std::unique_lock lock(state.mutex);
  if (!state.kinds.count(kind) && kind != 9999) return;
  if (!state.requested) return;
  if (state.buffer && state.used + bytes > state.size) {
    full = std::exchange(state.buffer, nullptr), full_size = state.size, full_used = state.used;
  }
  if (!state.buffer) {
    size_t most = 0;
    state.requested(&state.buffer, &state.size, &most);
    state.used = 0;
  }
  if (!state.buffer || state.size < bytes) {
    ++state.dropped;
  } else {
    std::memcpy(state.buffer + state.used, record, known_bytes < bytes ? known_bytes : bytes);
    if (tail) std::memcpy(state.buffer + state.used + known_bytes, tail, tail_bytes);
    state.used += bytes;
  }
  lock.unlock();
  if (full) state.completed(nullptr, 0, full, full_size, full_used);
}

void deliver() {
  std::unique_lock lock(state.mutex);
  if (!state.buffer || !state.completed || state.used == 0) return;
  uint8_t* buffer = std::exchange(state.buffer, nullptr);
  const size_t size = state.size, used = state.used;
  lock.unlock();
  state.completed(nullptr, 0, buffer, size, used);
}

void dispatch(int domain, uint32_t cbid, Site site, uint32_t correlation, int result) {
  {
    std::lock_guard lock(state.mutex);
    if (!state.subscribed || !state.callbacks.count({domain, cbid})) return;
  }
  uint64_t slot = 0;
  CallbackData data{};
  data.site = site;
  const auto name = kNames.find({domain, cbid});
  data.function_name = name == kNames.end() ? "" : name->second;
  data.return_value = site == Site::kExit ? &result : nullptr;
  data.correlation_data = &slot;
  data.correlation_id = correlation;
  void* const parameters[] = {reinterpret_cast<void*>(uintptr_t{7})};  // the stream, where a call has one
  data.function_params = parameters;
  data.context_uid = 1;
  state.callback(state.userdata, static_cast<Domain>(domain), cbid, &data);
}

}  // namespace

extern "C" {

#define PLAB_FAKE __attribute__((visibility("default")))
#define ENTER(name)                                                 \
  if (const Result failure = entered(#name); failure != kSuccess) { \
    return failure;                                                 \
  }

PLAB_FAKE Result cuptiGetVersion(uint32_t* version) {
  *version = state.version;
  return kSuccess;
}
PLAB_FAKE Result cuptiGetResultString(Result result, const char** text) {
  *text = result == 15 ? "CUPTI_ERROR_NOT_INITIALIZED" : result == 0 ? "CUPTI_SUCCESS" : "CUPTI_ERROR_FAKE";
  return kSuccess;
}
PLAB_FAKE Result cuptiGetCallbackName(Domain domain, uint32_t cbid, const char** name) {
  ENTER(GetCallbackName)
  const auto found = kNames.find({static_cast<int>(domain), cbid});
  if (found == kNames.end()) return 1;
  *name = found->second;
  return kSuccess;
}
PLAB_FAKE Result cuptiSubscribe_v2(SubscriberHandle* subscriber, CallbackFunction callback, void* userdata,
                                   SubscriberParams* params) {
  ENTER(Subscribe)
  if (!state.other_subscriber.empty()) {
    if (params->old_subscriber_name) {
      std::strncpy(params->old_subscriber_name, state.other_subscriber.c_str(),
                   params->old_subscriber_size - 1);
    }
    return kMultipleSubscribers;
  }
  // CUPTI has workers of its own, with the signal mask of whoever made it start them.
  if (std::getenv("FAKE_CUPTI_WORKER")) {
    std::thread worker([] { std::this_thread::sleep_for(std::chrono::hours(1)); });
    pthread_setname_np(worker.native_handle(), "fake-cupti");
    worker.detach();
  }
  state.callback = callback;
  state.userdata = userdata;
  state.subscribed = true;
  *subscriber = reinterpret_cast<SubscriberHandle>(&state);
  return kSuccess;
}
PLAB_FAKE Result cuptiSubscribe(SubscriberHandle* subscriber, CallbackFunction callback, void* userdata) {
  SubscriberParams params{};
  return cuptiSubscribe_v2(subscriber, callback, userdata, &params);
}
PLAB_FAKE Result cuptiUnsubscribe(SubscriberHandle) {
  ENTER(Unsubscribe)
  std::lock_guard lock(state.mutex);
  state.subscribed = false;
  state.callbacks.clear();
  return kSuccess;
}
PLAB_FAKE Result cuptiEnableCallback(uint32_t enable, SubscriberHandle, Domain domain, uint32_t cbid) {
  ENTER(EnableCallback)
  std::lock_guard lock(state.mutex);
  const std::pair<int, uint32_t> key{static_cast<int>(domain), cbid};
  enable ? void(state.callbacks.insert(key)) : void(state.callbacks.erase(key));
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityEnable(ActivityKind kind) {
  ENTER(ActivityEnable)
  std::lock_guard lock(state.mutex);
  state.kinds.insert(static_cast<int>(kind));
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityEnableAndDump(ActivityKind kind) {
  if (const Result result = cuptiActivityEnable(kind); result != kSuccess) return result;
  if (kind == ActivityKind::kContext) {
    const ContextRecord record{static_cast<int>(kind), 1, 0, 1, 7};
    put(&record, sizeof record);
  } else if (kind == ActivityKind::kStream) {
    const StreamRecord record{static_cast<int>(kind), 1, 7, 0, 3, 0};
    put(&record, sizeof record);
  }
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityDisable(ActivityKind kind) {
  ENTER(ActivityDisable)
  std::lock_guard lock(state.mutex);
  state.kinds.erase(static_cast<int>(kind));
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityRegisterCallbacks(BufferRequested requested, BufferCompleted completed) {
  ENTER(ActivityRegisterCallbacks)
  state.requested = requested;
  state.completed = completed;
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityFlushAll(uint32_t) {
  ENTER(ActivityFlushAll)
  deliver();
  return kSuccess;
}
// With FAKE_CUPTI_STEPPER, the real library's own stepping: it needs no GPU.
PLAB_FAKE Result cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, Record** record) {
  using Step = Result (*)(uint8_t*, size_t, Record**);
  static const char* const path = std::getenv("FAKE_CUPTI_STEPPER");
  static void* const library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  static const auto step =
      library ? reinterpret_cast<Step>(dlsym(library, "cuptiActivityGetNextRecord")) : nullptr;
  if (step) return step(buffer, valid, record);
  uint8_t* next = *record ? reinterpret_cast<uint8_t*>(*record) + bytes_of((*record)->kind) : buffer;
  if (next >= buffer + valid) return kMaxLimitReached;
  *record = reinterpret_cast<Record*>(next);
  return kSuccess;
}
PLAB_FAKE Result cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  std::lock_guard lock(state.mutex);
  *dropped = std::exchange(state.dropped, 0);
  return kSuccess;
}
PLAB_FAKE Result cuptiActivitySetAttribute(int, size_t*, void*) {
  ENTER(ActivitySetAttribute)
  return kSuccess;
}
PLAB_FAKE Result cuptiSetThreadIdType(int) {
  ENTER(SetThreadIdType)
  return kSuccess;
}
PLAB_FAKE Result cuptiGetStreamIdEx(void*, void* stream, uint8_t, uint32_t* id) {
  ENTER(GetStreamIdEx)
  *id = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(stream));
  return kSuccess;
}
PLAB_FAKE Result cuptiGetGraphNodeId(void* node, uint64_t* id) {
  *id = reinterpret_cast<uintptr_t>(node);
  return kSuccess;
}

// ---- what a test says ----

PLAB_FAKE void fake_reset() {
  std::lock_guard lock(state.mutex);
  state.version = 130000;
  state.other_subscriber.clear();
  state.failures.clear();
  state.api_calls = state.dropped = 0;
  state.next_correlation = 1;
}
PLAB_FAKE void fake_fail(const char* function, int result) { state.failures[function] = result; }
PLAB_FAKE void fake_other_subscriber(const char* name) { state.other_subscriber = name; }
PLAB_FAKE void fake_version(uint32_t version) { state.version = version; }
PLAB_FAKE uint64_t fake_api_calls() { return state.api_calls; }
PLAB_FAKE int fake_kind_enabled(int kind) { return static_cast<int>(state.kinds.count(kind)); }
// Not counting those of graph captures, which stay on in pauses: a launch does not meet them.
PLAB_FAKE int fake_callbacks_enabled() {
  int count = 0;
  for (const auto& key : state.callbacks) {
    const auto found = kNames.find(key);  // what is created and cloned has no name
    count += found == kNames.end() || !std::strstr(found->second, "Capture");
  }
  return count;
}
PLAB_FAKE int fake_subscribed() { return state.subscribed; }

// The two halves of a CUDA call, and a whole one; a runtime launch makes a driver launch of its own, with the
// same correlation id. Returns the correlation id.
PLAB_FAKE uint32_t fake_enter(int domain, uint32_t cbid) {
  uint32_t correlation;
  {
    std::lock_guard lock(state.mutex);
    correlation = state.next_correlation++;
  }
  dispatch(domain, cbid, Site::kEnter, correlation, 0);
  return correlation;
}
PLAB_FAKE void fake_exit(int domain, uint32_t cbid, uint32_t correlation, int result) {
  dispatch(domain, cbid, Site::kExit, correlation, result);
}
PLAB_FAKE uint32_t fake_call(int domain, uint32_t cbid, int result) {
  const uint32_t correlation = fake_enter(domain, cbid);
  if (domain == 2 && cbid == 211) {
    dispatch(1, 307, Site::kEnter, correlation, 0);
    dispatch(1, 307, Site::kExit, correlation, 0);
  }
  fake_exit(domain, cbid, correlation, result);
  return correlation;
}
PLAB_FAKE uint32_t fake_launch() { return fake_call(2, 211, 0); }
// Many launches in one go, for tests of volume.
PLAB_FAKE void fake_launches(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) fake_launch();
}

// Launches for so long; returns the nanoseconds of the slowest.
PLAB_FAKE uint64_t fake_slowest_launch(uint64_t milliseconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  uint64_t slowest = 0;
  for (auto begin = Clock::now(); begin < end; begin = Clock::now()) {
    fake_launch();
    const std::chrono::nanoseconds spent = Clock::now() - begin;
    if (static_cast<uint64_t>(spent.count()) > slowest) slowest = static_cast<uint64_t>(spent.count());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return slowest;
}

// What the recorder's callbacks alone take for a launch, in picoseconds: CUPTI's own work and this file's locks are
// left out. A launch makes two runtime callbacks and two of its driver call. Before it, `evicted_bytes` of other
// memory are read and as many of other code run, as the work of a framework between two launches would.
PLAB_FAKE uint64_t fake_timed_launch(uint64_t evicted_bytes) {
  static const std::vector<uint8_t> other(kOtherBytes, 1);
  static const auto other_code = other_code_of(kOtherBytes);
  static const double tick_ps = [] {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const uint64_t first = __rdtsc();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const uint64_t ticks = __rdtsc() - first;
    return std::chrono::duration<double, std::pico>(Clock::now() - begin).count() /
           static_cast<double>(ticks);
  }();
  volatile uint8_t seen = 0;
  for (uint64_t at = 0; at < evicted_bytes; at += 64) seen = seen + other[at];
  if (evicted_bytes) other_code(evicted_bytes / kCodeStep);
  uint64_t slot = 0;
  int result = 0;
  CallbackData data{};
  data.correlation_data = &slot;
  data.correlation_id = ++state.next_correlation;
  const uint64_t start = __rdtsc();
  state.callback(state.userdata, Domain::kRuntime, 211, &data);
  state.callback(state.userdata, Domain::kDriver, 307, &data);
  data.site = Site::kExit;
  data.return_value = &result;
  state.callback(state.userdata, Domain::kDriver, 307, &data);
  state.callback(state.userdata, Domain::kRuntime, 211, &data);
  return static_cast<uint64_t>(tick_ps * static_cast<double>(__rdtsc() - start));
}

// A node comes into a graph, by the call that this thread is in; with `original` it is a clone of that one.
PLAB_FAKE void fake_graph_node(uint64_t node, uint64_t original) {
  const uint32_t cbid = original ? kGraphNodeCloned : kGraphNodeCreated;
  {
    std::lock_guard lock(state.mutex);
    if (!state.subscribed || !state.callbacks.count({static_cast<int>(Domain::kResource), cbid})) return;
  }
  GraphData graph{nullptr, nullptr, reinterpret_cast<void*>(node), reinterpret_cast<void*>(original)};
  const ResourceData data{nullptr, nullptr, &graph};
  state.callback(state.userdata, Domain::kResource, cbid, &data);
}

PLAB_FAKE void fake_kernel_of_node(uint32_t correlation, uint64_t start, uint64_t end, const char* name,
                                   uint32_t stream, int grid, int block, uint64_t node) {
  KernelRecord r{};
  r.kind = static_cast<int>(ActivityKind::kConcurrentKernel);
  r.cache_configs = 0x10, r.registers_per_thread = 32;
  r.start_ns = start, r.end_ns = end, r.context_id = 1, r.stream_id = stream;
  r.grid_x = grid, r.grid_y = 2, r.grid_z = 1, r.block_x = block, r.block_y = 1, r.block_z = 1;
  r.static_shared_memory = 16, r.dynamic_shared_memory = 1024;
  r.correlation_id = correlation;
  {
    std::lock_guard lock(state.mutex);
    if (state.names.empty() || state.names.back() != name) state.names.emplace_back(name);
    r.name = state.names.back().c_str();
  }
  r.shared_memory_executed = 32768;
  r.graph_node_id = node;
  KernelTail tail{};
  tail.cluster.cluster_x = 2, tail.cluster.cluster_y = tail.cluster.cluster_z = 1;
  tail.cluster.cluster_scheduling_policy = 1;
  tail.cluster.local_memory_total = uint64_t{5} << 32;
  put(&r, sizeof r, &tail, sizeof tail);
}
PLAB_FAKE void fake_kernel(uint32_t correlation, uint64_t start, uint64_t end, const char* name,
                           uint32_t stream, int grid, int block) {
  fake_kernel_of_node(correlation, start, end, name, stream, grid, block, 0);
}
// Many launches with their kernels in one go, each a microsecond long.
PLAB_FAKE void fake_work(uint32_t count, const char* name) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t correlation = fake_launch();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto start = static_cast<uint64_t>(std::chrono::nanoseconds(now).count());
    fake_kernel(correlation, start, start + 1000, name, 7, 1, 1);
  }
}
PLAB_FAKE void fake_memcpy(uint32_t correlation, uint64_t start, uint64_t end, uint64_t bytes,
                           int copy_kind) {
  MemcpyRecord r{};
  r.kind = static_cast<int>(ActivityKind::kMemcpy);
  r.copy_kind = static_cast<uint8_t>(copy_kind);
  r.src_kind = 2, r.dst_kind = 3;
  r.bytes = bytes, r.start_ns = start, r.end_ns = end;
  r.context_id = 1, r.stream_id = 7, r.correlation_id = correlation;
  put(&r, sizeof r);
}
PLAB_FAKE void fake_peer_copy(uint32_t correlation, uint64_t start, uint64_t end, uint64_t bytes) {
  MemcpyPeerRecord r{};
  r.kind = static_cast<int>(ActivityKind::kMemcpyPeer);
  r.copy_kind = 10, r.src_kind = r.dst_kind = 3;
  r.bytes = bytes, r.start_ns = start, r.end_ns = end;
  r.context_id = 1, r.stream_id = 7, r.correlation_id = correlation;
  r.src_device_id = 0, r.src_context_id = 1, r.dst_device_id = 1, r.dst_context_id = 2;
  {
    std::lock_guard lock(state.mutex);
    state.kinds.insert(r.kind);  // CUPTI delivers these with MEMCPY
  }
  put(&r, sizeof r);
}
PLAB_FAKE void fake_memset(uint32_t correlation, uint64_t start, uint64_t end, uint64_t bytes,
                           uint32_t value) {
  MemsetRecord r{};
  r.kind = static_cast<int>(ActivityKind::kMemset);
  r.value = value, r.bytes = bytes, r.start_ns = start, r.end_ns = end;
  r.context_id = 1, r.stream_id = 7, r.correlation_id = correlation, r.mem_kind = 3;
  put(&r, sizeof r);
}
PLAB_FAKE void fake_graph(uint32_t correlation, uint64_t start, uint64_t end, uint32_t graph) {
  GraphTraceRecord r{};
  r.kind = static_cast<int>(ActivityKind::kGraphTrace);
  r.correlation_id = correlation, r.start_ns = start, r.end_ns = end, r.graph_id = graph, r.context_id = 1,
  r.stream_id = 7;
  put(&r, sizeof r);
}
// A record of this kind with a number of its own in every field. Returns which: "bytes=5 start_ns=6 ...".
PLAB_FAKE const char* fake_numbered(int kind) {
  static Numbered made;
  made = numbered(static_cast<ActivityKind>(kind));
  {
    std::lock_guard lock(state.mutex);
    state.kinds.insert(kind);  // CUPTI delivers copies between devices with MEMCPY
  }
  put(made.record.data(), made.record.size());
  return made.numbers.c_str();
}
PLAB_FAKE void fake_unknown_record() {
  const Record r{9999};
  put(&r, sizeof r);
}
PLAB_FAKE void fake_flush() { deliver(); }
// Another client registers its buffers: all records are its from now on.
PLAB_FAKE void fake_other_buffers() {
  deliver();
  state.requested = [](uint8_t** data, size_t* bytes, size_t*) {
    static uint8_t theirs[1 << 16];
    *data = theirs, *bytes = sizeof theirs;
  };
  state.completed = [](void*, uint32_t, uint8_t*, size_t, size_t) {};
}

}  // extern "C"

#include "pm_sampling.h"
