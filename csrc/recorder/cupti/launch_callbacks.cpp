// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/launch_callbacks.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>

#include "recorder/cupti/graph_nodes.h"
#include "recorder/cupti/stream_captures.h"
#include "recorder/cupti/synchronization.h"
#include "recorder/python/stacks.h"
#include "recorder/spool/records.h"
#include "recorder/system/tick_clock.h"
#include "recorder/torch/autograd_link.h"
#include "trace/cuda_calls.h"

namespace plab::recorder::launch_callbacks {
namespace {

constexpr uint32_t kLargestCbid = 4096;  // far above any version's last id

// What every callback reads, in one cache line: a launch finds little of us in the caches.
alignas(64) struct {
  std::atomic<LaunchRings*> rings{nullptr};
  // The recording's number in the upper half, the number of arm() calls in the lower. A thread's ring is stale in
  // another recording. Its current call is stale after every arming, because the exit was not seen.
  std::atomic<uint64_t> session{0};
  std::atomic<bool> take_stacks{false};
} shared;
constexpr int kRecordingShift = 32;
std::atomic<uint64_t> swallowed{0};

// The call that the thread is in. A runtime call makes driver calls of its own, which carry the same
// correlation id; only the outermost call is recorded.
//
// It has no destructor: thread-locals of the program may be destroyed after ours and call CUDA.
struct ThreadState {
  LaunchRing* ring = nullptr;
  std::shared_ptr<LaunchRing>* held = nullptr;  // the same one
  uint64_t session = 0;
  bool inside = false;
  bool ending = false;  // this thread's Owner is destroyed
  cupti::Domain domain{};
  uint64_t torch_thread = 0;  // torch's number of this thread, once it is known
  ThreadStacks* stacks = nullptr;
  LaunchEvent event{};
};
static_assert(std::is_trivially_destructible_v<ThreadState>);
constinit thread_local ThreadState thread_state;

void let_go(ThreadState& thread) noexcept {
  if (thread.ring) thread.ring->owner_gone.store(true, std::memory_order_release);
  delete thread.held;
  thread.ring = nullptr;
  thread.held = nullptr;
  thread.inside = false;
}

struct Owner {
  ~Owner() {
    let_go(thread_state);
    thread_state.ending = true;
  }
};

// Calls after the Owner is gone get a ring each, which is released when the call ends.
[[gnu::cold]] void take_ring(ThreadState& thread, LaunchRings* rings) {
  if (!thread.ending) {
    static thread_local Owner owner;
    (void)owner;
  }
  thread.held = new std::shared_ptr<LaunchRing>(rings->add(static_cast<uint32_t>(syscall(SYS_gettid))));
  thread.ring = thread.held->get();
}

[[gnu::hot]] void enter(ThreadState& thread, LaunchRings* rings, cupti::Domain domain, uint32_t cbid,
                        const cupti::CallbackData& call) {
  const uint64_t now_session = shared.session.load(std::memory_order_relaxed);
  if (thread.session != now_session) {
    if (thread.session >> kRecordingShift != now_session >> kRecordingShift) let_go(thread);
    thread.session = now_session;
    thread.inside = false;
  }
  if (thread.inside) {
    const bool nested = domain != thread.domain || call.correlation_id == thread.event.correlation;
    if (nested && domain == cupti::Domain::kDriver) return;
    if (nested && domain == thread.domain) return;
    // A runtime call never starts inside another call: the exit of the last one was missed.
  }
  if (!thread.ring) take_ring(thread, rings);
  LaunchEvent& event = thread.event;
  event.start_tick = tick_clock::now();
  event.correlation = call.correlation_id;
  event.cbid = static_cast<uint16_t>(cbid);
  event.context = call.context_uid;
  event.stream = synchronization::stream_of(domain, cbid, call);
  event.flags = domain == cupti::Domain::kDriver ? uint8_t{spool::kApiDriver} : uint8_t{0};
  event.stack =
      shared.take_stacks.load(std::memory_order_relaxed) ? python_stacks::capture(&thread.stacks) : 0;
  autograd_link::Reading reading{.self_thread = thread.torch_thread};
  if (autograd_link::read(&reading)) {
    thread.torch_thread = reading.self_thread;
    event.flags |= spool::kApiLinked;
    if (reading.backward) event.flags |= spool::kApiBackward;
    event.peek_seq = reading.peek_seq;
    event.self_thread = reading.self_thread;
    event.node_seq = reading.node_seq;
    event.node_thread = reading.node_thread;
    event.node_type = reading.node_type;
  } else {
    event.peek_seq = event.self_thread = event.node_seq = event.node_thread = 0;
    event.node_type = nullptr;
  }
  thread.domain = domain;
  thread.inside = true;
  event.own_ticks =
      static_cast<uint32_t>(std::min<uint64_t>(tick_clock::now() - event.start_tick, UINT32_MAX));
}

// Every second callback of a launch: the driver's call that the runtime makes.
bool within_runtime_call(const ThreadState& thread, const cupti::CallbackData& call) {
  return thread.inside && thread.event.correlation == call.correlation_id &&
         thread.domain == cupti::Domain::kRuntime &&
         thread.session == shared.session.load(std::memory_order_relaxed);
}

void leave(ThreadState& thread, cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) {
  LaunchEvent& event = thread.event;
  if (!thread.inside || thread.session != shared.session.load(std::memory_order_relaxed) ||
      domain != thread.domain || cbid != event.cbid || call.correlation_id != event.correlation) {
    return;
  }
  thread.inside = false;
  event.end_tick = tick_clock::now();
  event.return_value = call.return_value ? *static_cast<const int*>(call.return_value) : 0;
  thread.ring->push(event);
  if (thread.ring->sample_now()) thread.ring->add_exit(tick_clock::now() - event.end_tick);
  if (thread.ending) let_go(thread);
}

}  // namespace

CallClass classify(const std::string& name) {
  switch (trace::cuda_call(name)) {
    case trace::CudaCall::kLaunch:
      return CallClass::kLaunch;
    case trace::CudaCall::kGraphLaunch:
      return CallClass::kGraph;
    case trace::CudaCall::kCopy:
    case trace::CudaCall::kBlockingCopy:
    case trace::CudaCall::kPrefetch:
      return CallClass::kCopy;
    case trace::CudaCall::kSet:
      return CallClass::kSet;
    case trace::CudaCall::kStreamSync:
    case trace::CudaCall::kEventSync:
    case trace::CudaCall::kDeviceSync:
      return CallClass::kSync;
    case trace::CudaCall::kStreamWaitEvent:
      return CallClass::kWait;
    case trace::CudaCall::kDeviceMemory:
    case trace::CudaCall::kPoolMemory:
    case trace::CudaCall::kUnmapMemory:
      return CallClass::kMemory;
    default:
      return CallClass::kNone;
  }
}

std::vector<TracedCall> traced_calls(const cupti::Functions& functions) {
  std::vector<TracedCall> calls;
  for (const auto domain : {cupti::Domain::kRuntime, cupti::Domain::kDriver}) {
    for (uint32_t cbid = 1; cbid < kLargestCbid; ++cbid) {
      const char* name = nullptr;
      if (functions.GetCallbackName(domain, cbid, &name) != cupti::kSuccess || !name) continue;
      if (classify(name) != CallClass::kNone) calls.push_back({domain, cbid, name});
    }
  }
  return calls;
}

void arm(LaunchRings* rings, bool python_stacks) noexcept {
  shared.take_stacks = python_stacks;
  swallowed = 0;
  shared.session.fetch_add(uint64_t{1} << kRecordingShift);
  shared.rings.store(rings, std::memory_order_release);
}

void rearm(LaunchRings* rings, bool python_stacks) noexcept {
  shared.take_stacks = python_stacks;
  shared.session.fetch_add(1);
  shared.rings.store(rings, std::memory_order_release);
}

void disarm() noexcept {
  shared.rings.store(nullptr, std::memory_order_release);
  shared.take_stacks = false;
}

[[gnu::hot]] void on_call(void* graph_nodes, cupti::Domain domain, uint32_t cbid, const void* data) {
  LaunchRings* rings = shared.rings.load(std::memory_order_acquire);
  // The caller is the CUDA driver, which no exception may cross.
  try {
    if (domain == cupti::Domain::kResource) {
      const auto& resource = *static_cast<const cupti::ResourceData*>(data);
      const auto& graph = *static_cast<const cupti::GraphData*>(resource.descriptor);
      if (rings) static_cast<GraphNodes*>(graph_nodes)->add(cbid, graph, correlation_now());
      return;
    }
    const auto& call = *static_cast<const cupti::CallbackData*>(data);
    if (domain == cupti::Domain::kDriver && within_runtime_call(thread_state, call)) return;
    if (stream_captures::on_call(domain, cbid, call)) return;
    if (call.site == cupti::Site::kEnter) {
      if (rings) enter(thread_state, rings, domain, cbid, call);
    } else {  // disarmed too: the window closed while this thread was in a call that began in it
      leave(thread_state, domain, cbid, call);
    }
  } catch (...) {
    swallowed.fetch_add(1, std::memory_order_relaxed);
  }
}

bool inside_call() noexcept {
  return thread_state.inside && thread_state.session == shared.session.load(std::memory_order_relaxed);
}

uint32_t correlation_now() noexcept { return inside_call() ? thread_state.event.correlation : 0; }

uint64_t errors() noexcept { return swallowed.load(); }

}  // namespace plab::recorder::launch_callbacks
