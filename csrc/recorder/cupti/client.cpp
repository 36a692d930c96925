// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/client.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "recorder/system/clock.h"
#include "recorder/system/signal_mask.h"

namespace plab::recorder {

using cupti::ActivityKind;

namespace {

constexpr uint64_t kWorthTellingNs = 1'000'000'000;
constexpr uint32_t kWarning = 2;  // DIAGNOSTIC_EVENT's severity

// KERNEL would serialise the GPU, RUNTIME would cost more than everything else together, and SYNCHRONIZATION
// nearly as much, long after it is off (synchronization.h).
constexpr ActivityKind kKinds[] = {ActivityKind::kConcurrentKernel, ActivityKind::kMemcpy,
                                   ActivityKind::kMemset, ActivityKind::kOverhead};
constexpr ActivityKind kKindsOfExistingThings[] = {ActivityKind::kContext, ActivityKind::kStream};

// CUPTI's buffer callbacks carry no user data.
std::atomic<ActivityBuffers*> active_buffers{nullptr};

uint32_t call_key(cupti::Domain domain, uint32_t cbid) { return static_cast<uint32_t>(domain) << 16 | cbid; }

}  // namespace

void CuptiClient::on_buffer_requested(uint8_t** data, size_t* bytes, size_t* most_records) {
  *most_records = 0;  // as many as fit
  *data = nullptr;
  *bytes = 0;
  if (ActivityBuffers* buffers = active_buffers.load()) buffers->request(data, bytes);
}

void CuptiClient::on_buffer_completed(void*, uint32_t, uint8_t* data, size_t, size_t valid) {
  if (ActivityBuffers* buffers = active_buffers.load()) buffers->complete(data, valid);
}

// A thread that does not exist in the child may hold the lock of the buffers.
void CuptiClient::after_fork_child() noexcept { active_buffers = nullptr; }

std::string CuptiClient::explain(cupti::Result result, const char* what) const {
  switch (result) {
    case cupti::kNotInitialized:
      return "CUPTI could not be initialised: the NVIDIA driver is older than " + functions_.path;
    case cupti::kUnknown:
      return "no CUDA driver was found (or it cannot be initialised)";
    case cupti::kInsufficientPrivileges:
      return "the driver does not let this user trace the GPU";
    default:
      return std::string(what) + " failed: " + functions_.describe(result);
  }
}

std::string CuptiClient::subscribe() {
  cupti::Result code;
  char owner[cupti::kSubscriberNameBytes] = "";
  if (functions_.Subscribe_v2) {
    cupti::SubscriberParams params{sizeof params, "profiling_lab", owner, sizeof owner};
    code = functions_.Subscribe_v2(&subscriber_, &launch_callbacks::on_call, &graph_nodes_, &params);
  } else {
    code = functions_.Subscribe(&subscriber_, &launch_callbacks::on_call, &graph_nodes_);
  }
  if (code == cupti::kSuccess) return "";
  subscriber_ = nullptr;
  if (code != cupti::kMultipleSubscribers) return explain(code, "cuptiSubscribe");
  refused_ = true;
  const std::string name(owner, strnlen(owner, sizeof owner));
  const bool named = !name.empty() && name.find("<not provided>") == std::string::npos;
  return "CUPTI is held by " +
         (named ? "'" + name + "'"
                : std::string("another profiler that gives no name (nsys, Proton, or torch.profiler, which "
                              "keeps it once it has been used)")) +
         ", and this CUDA version lets one client trace at a time: stop it, or run without it";
}

std::string CuptiClient::start(const CuptiOptions& options, LaunchRings* rings, bool python_stacks) {
  const SignalsBlocked for_new_threads;
  refused_ = false;
  decoder_.reset();
  calls_.clear();
  flush_ns_ = flushes_ = dropped_ = undecoded_ = 0;
  last_launch_ = {};
  captures_at_last_record_ = 0;

  // The library that was found first is kept: a second copy would not see the state of the first.
  if (functions_.path.empty() || !options.override_path.empty()) {
    const std::string why = load_cupti(options.override_path, options.candidates, &functions_);
    if (!why.empty()) return why;
  }
  if (std::string why = subscribe(); !why.empty()) return why;
  if (functions_.SetThreadIdType) functions_.SetThreadIdType(cupti::kThreadIdSystem);
  uint8_t zeroed = 1;
  size_t zeroed_bytes = sizeof zeroed;
  functions_.ActivitySetAttribute(cupti::kAttributeZeroedBuffer, &zeroed_bytes, &zeroed);
  buffers_.prepare(options.buffer_bytes, options.buffers_ahead, options.buffers_most,
                   functions_.version >= cupti::kVersionRefusableBuffers);
  active_buffers = &buffers_;

  cupti::Result code = functions_.ActivityRegisterCallbacks(&on_buffer_requested, &on_buffer_completed);
  if (code == cupti::kSuccess) code = functions_.ActivityEnable(ActivityKind::kConcurrentKernel);
  if (code != cupti::kSuccess) {
    stop();
    return explain(code, "cuptiActivityEnable(CONCURRENT_KERNEL)");
  }
  enable_kinds(options.graph_nodes);
  enable_callbacks(rings, python_stacks);
  return "";
}

void CuptiClient::enable_kinds(bool graph_nodes) {
  for (const ActivityKind kind : kKinds) {
    const cupti::Result code = functions_.ActivityEnable(kind);
    if (code == cupti::kSuccess) continue;
    const std::string text = "activity kind " + std::to_string(int(kind)) + ": " + functions_.describe(code);
    writer_.diagnostic(now_ns(), kWarning, text);
  }
  // One record per graph costs less than one record per node. But CUPTI crashes when a graph is replayed that was
  // made before this kind was enabled (seen on 13.0 with driver 580, and with CUPTI alone). And if it stays enabled in
  // pauses, they are not free: 5 % of a launch-bound step (H200). So a process with older graphs or with pauses gets
  // one record per node.
  traces_nodes_ = graph_nodes || cuda_context_exists();
  if (!traces_nodes_) functions_.ActivityEnable(ActivityKind::kGraphTrace);
  for (const ActivityKind kind : kKindsOfExistingThings) {
    functions_.ActivityEnableAndDump ? functions_.ActivityEnableAndDump(kind)
                                     : functions_.ActivityEnable(kind);
  }
}

void CuptiClient::enable_callbacks(LaunchRings* rings, bool python_stacks) {
  traced_ = launch_callbacks::traced_calls(functions_);
  synchronization::start(&functions_);
  for (const auto& call : traced_) {
    const bool launches = launch_callbacks::classify(call.name) == launch_callbacks::CallClass::kLaunch;
    calls_[call_key(call.domain, call.cbid)] = {writer_.intern(call.name), launches,
                                                synchronization::classify(call.name)};
    synchronization::add(call.domain, call.cbid, call.name);
  }
  captures_ = stream_captures::start(functions_);
  for (const auto& call : captures_) functions_.EnableCallback(1, subscriber_, call.domain, call.cbid);
  launch_callbacks::arm(rings, python_stacks);
  graph_nodes_.take();  // of an earlier recording
  if (traces_nodes_) add_node_callbacks();
  for (const auto& call : traced_) {
    const cupti::Result code = functions_.EnableCallback(1, subscriber_, call.domain, call.cbid);
    if (code == cupti::kSuccess) continue;
    writer_.diagnostic(now_ns(), kWarning, "callback " + call.name + ": " + functions_.describe(code));
  }
}

void CuptiClient::add_node_callbacks() {
  if (!functions_.GetGraphNodeId) return;
  for (const uint32_t cbid : {cupti::kGraphNodeCreated, cupti::kGraphNodeCloned}) {
    traced_.push_back({cupti::Domain::kResource, cbid, "graph nodes"});
  }
}

void CuptiClient::switch_callbacks(bool on) noexcept {
  for (const auto& call : traced_) functions_.EnableCallback(on, subscriber_, call.domain, call.cbid);
}

void CuptiClient::disable_kinds() noexcept {
  for (const ActivityKind kind : kKinds) functions_.ActivityDisable(kind);
  functions_.ActivityDisable(ActivityKind::kGraphTrace);
}

void CuptiClient::pause() noexcept {
  launch_callbacks::disarm();
  switch_callbacks(false);
  disable_kinds();
  if (std::exchange(traces_nodes_, true)) return;  // not again as a whole: see enable_kinds()
  try {
    add_node_callbacks();
  } catch (const std::bad_alloc&) {  // then the kernels of graphs are on the lines that replay them
  }
}

void CuptiClient::resume(LaunchRings* rings, bool python_stacks) noexcept {
  const SignalsBlocked for_new_threads;
  for (const ActivityKind kind : kKinds) functions_.ActivityEnable(kind);
  switch_callbacks(true);
  launch_callbacks::rearm(rings, python_stacks);
}

void CuptiClient::stop() noexcept {
  const SignalsBlocked for_new_threads;
  launch_callbacks::disarm();
  switch_callbacks(false);
  for (const auto& call : captures_) functions_.EnableCallback(0, subscriber_, call.domain, call.cbid);
  disable_kinds();
  for (const ActivityKind kind : kKindsOfExistingThings) functions_.ActivityDisable(kind);
  flush(true);
  // Other tools may use CUPTI now.
  functions_.Unsubscribe(subscriber_);
  subscriber_ = nullptr;
  traced_.clear();
  captures_.clear();
}

void CuptiClient::flush(bool forced) noexcept {
  const uint64_t begin = monotonic_ns();
  functions_.ActivityFlushAll(forced ? cupti::kFlushForced : 0);
  size_t dropped = 0;
  const cupti::Result code = functions_.ActivityGetNumDroppedRecords(nullptr, 0, &dropped);
  if (code != cupti::kSuccess) dropped = 0;
  if (dropped) {
    char text[64];
    std::snprintf(text, sizeof text, "CUPTI dropped %zu records", dropped);
    writer_.diagnostic(now_ns(), kWarning, text);
  }
  std::lock_guard lock(flush_mutex_);
  dropped_ += dropped;
  flush_ns_ += monotonic_ns() - begin;
  ++flushes_;
}

void CuptiClient::collect() {
  const uint32_t newest = decoder_.newest().correlation;
  for (const FilledBuffer& buffer : buffers_.take_filled()) {
    try {
      decoder_.decode(buffer.data, buffer.valid_bytes);
    } catch (...) {
      ++undecoded_;
    }
    buffers_.give_back(buffer.data);
  }
  if (decoder_.newest().correlation != newest) captures_at_last_record_ = stream_captures::begun();
  decoder_.write_out();
  writer_.append(graph_nodes_.take());
  buffers_.keep_ahead();
}

CuptiClient::Call CuptiClient::call_of(const LaunchEvent& event) const {
  const auto domain = event.flags & spool::kApiDriver ? cupti::Domain::kDriver : cupti::Domain::kRuntime;
  const auto found = calls_.find(call_key(domain, event.cbid));
  return found == calls_.end() ? Call{spool::kNone, false, synchronization::Wait::kNone} : found->second;
}

void CuptiClient::launched(uint32_t correlation, uint64_t time_ns) noexcept {
  if (correlation > last_launch_.correlation) last_launch_ = {correlation, time_ns};
}

// The activity API has no owner: another client that registers its buffers takes all records, silently. While
// a recording runs, missing records mean nothing: a kernel may take minutes.
void CuptiClient::compare_launches_with_records(uint64_t recording_start_ns) {
  const auto& newest = decoder_.newest();
  if (last_launch_.correlation <= newest.correlation) return;
  const uint64_t since = std::max(newest.time_ns, recording_start_ns);
  if (last_launch_.time_ns < since + kWorthTellingNs) return;
  // Work that is captured into a graph has no record. Losses are reported separately.
  const ActivityBuffers::Usage buffers = buffers_.usage();
  if (stream_captures::begun() != captures_at_last_record_ || dropped_ || undecoded_ || buffers.starved)
    return;
  writer_.diagnostic(
      now_ns(), kWarning,
      "CUPTI, asked for all records, had none of the kernels launched in the last " +
          std::to_string((last_launch_.time_ns - since) / 1'000'000'000) +
          " s of the recording: CUPTI gives records to one client alone, so another one in this process "
          "(torch.profiler is one) would explain it, and so would kernels that never ended");
}

void CuptiClient::add_statistics(std::map<std::string, std::string>* out) {
  const auto& counts = decoder_.counts();
  const ActivityBuffers::Usage buffers = buffers_.usage();
  const auto put = [out](const char* name, uint64_t value) { (*out)[name] = std::to_string(value); };
  put("kernels", counts.kernels);
  put("copies", counts.copies);
  put("sets", counts.sets);
  put("graph_launches", counts.graphs);
  put("records_unknown", counts.unknown);
  put("records_without_time", counts.without_time);
  put("starved_buffer_requests", buffers.starved);
  put("overhead_buffer_bytes", buffers.bytes);
  {
    std::lock_guard lock(flush_mutex_);
    // The only thing known about a discarded buffer is that it was not empty.
    put("dropped_records", dropped_ + buffers.discarded + undecoded_);
    put("overhead_flush_ns", flush_ns_);
    put("overhead_flushes", flushes_);
  }
  if (!functions_.path.empty()) {
    (*out)["cupti_path"] = functions_.path;
    put("cupti_version", functions_.version);
  }
}

}  // namespace plab::recorder
