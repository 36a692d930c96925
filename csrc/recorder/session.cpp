// SPDX-License-Identifier: Apache-2.0
#include "recorder/session.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "recorder/autograd_link.h"
#include "recorder/clock.h"
#include "recorder/nvtx_injection.h"
#include "recorder/python_stacks.h"

namespace plab::recorder {

using cupti::ActivityKind;
namespace spool = trace::spool;

namespace {

constexpr auto kDrainPeriod = std::chrono::milliseconds(20);
constexpr uint64_t kTakeoverAfterNs = 5'000'000'000;
constexpr uint64_t kClockStepNs = 1'000'000;

// KERNEL would serialise the GPU, RUNTIME would cost more than everything else together, and graphs are
// recorded as a whole: node by node costs too much where CUPTI has no hardware trace.
constexpr ActivityKind kKinds[] = {ActivityKind::kConcurrentKernel, ActivityKind::kMemcpy,
                                   ActivityKind::kMemset,           ActivityKind::kSynchronization,
                                   ActivityKind::kOverhead,         ActivityKind::kGraphTrace};
constexpr ActivityKind kKindsOfExistingThings[] = {ActivityKind::kContext, ActivityKind::kStream};

uint32_t call_key(cupti::Domain domain, uint32_t cbid) { return static_cast<uint32_t>(domain) << 16 | cbid; }

}  // namespace

Session& Session::instance() {
  static auto* const session = new Session;  // never destroyed: CUDA calls may come until the very end
  return *session;
}

Session::Session() { pthread_atfork(nullptr, nullptr, &Session::after_fork_child); }

// The child has none of our threads and must not touch CUPTI: a CUDA context does not survive a fork.
void Session::after_fork_child() {
  Session& session = instance();
  if (session.state_ == State::kIdle) return;
  session.state_ = State::kForked;
  launch_callbacks::disarm();
  autograd_link::detach();
  nvtx_injection::after_fork_child();
  python_stacks::after_fork_child();
  session.writer_.forget();
}

void Session::on_buffer_requested(uint8_t** data, size_t* bytes, size_t* most_records) {
  *most_records = 0;  // as many as fit
  instance().buffers_.request(data, bytes);
}

void Session::on_buffer_completed(void*, uint32_t, uint8_t* data, size_t, size_t valid) {
  instance().buffers_.complete(data, valid);
}

std::string Session::explain(cupti::Result result, const char* what) const {
  switch (result) {
    case cupti::kNotInitialized:
      return "CUPTI could not be initialised: the NVIDIA driver is older than " + cupti_.path;
    case cupti::kUnknown:
      return "no CUDA driver was found (or it cannot be initialised)";
    case cupti::kInsufficientPrivileges:
      return "the driver does not let this user trace the GPU";
    default:
      return std::string(what) + " failed: " + cupti_.describe(result);
  }
}

StartResult Session::start(const StartOptions& options) {
  std::lock_guard lock(control_);
  StartResult result;
  if (state_ == State::kForked) {
    result.error = "this process was forked from one that recorded, and CUDA tracing does not survive a fork";
    return result;
  }
  if (state_ != State::kIdle) {
    result.error = "a recording is already running in this process";
    return result;
  }
  start_ns_ = now_ns();
  result.error =
      writer_.open(options.spool_path, {spool::kFormatVersion, static_cast<uint32_t>(getpid()), start_ns_});
  if (!result.error.empty()) return result;
  state_ = State::kStarting;
  writer_.append(spool::Kind::kClock, std::vector{clock_sample()});
  flush_ns_ = flushes_ = recorded_calls_ = calls_with_stack_ = cupti_dropped_ = 0;
  calls_at_last_buffer_ = buffers_seen_ = 0;
  last_buffer_ns_ = start_ns_;
  takeover_reported_ = false;
  flush_period_ms_ = options.flush_period_ms;
  decoder_.reset();
  stacks_.reset();
  rings_.clear();
  call_names_.clear();
  node_names_.clear();

  if (options.python_stacks) {
    python_ = python_stacks::start(&result.stack_reason);
  } else {
    python_ = false;
    result.stack_reason = "switched off";
  }
  nvtx_ = options.nvtx;
  if (nvtx_) nvtx_injection::start();
  gpu_ = false;
  result.gpu_reason = options.gpu ? start_gpu(options) : "switched off";
  if (subscriber_refused_) {  // somebody else holds CUPTI: a recording without kernels would only mislead
    if (nvtx_) nvtx_injection::stop(writer_);
    if (python_) python_stacks::stop();
    writer_.close();
    unlink(options.spool_path.c_str());
    result.error = result.gpu_reason;
    state_ = State::kIdle;
    return result;
  }
  result.started = true;
  result.gpu = gpu_ = result.gpu_reason.empty();
  stopping_ = false;
  consumer_ = std::thread(&Session::consume, this);
  state_ = State::kRecording;
  return result;
}

std::string Session::subscribe() {
  subscriber_refused_ = false;
  cupti::Result code;
  char owner[cupti::kSubscriberNameBytes] = "";
  if (cupti_.Subscribe_v2) {
    cupti::SubscriberParams params{sizeof params, "profiling_lab", owner, sizeof owner};
    code = cupti_.Subscribe_v2(&subscriber_, &launch_callbacks::on_call, nullptr, &params);
  } else {
    code = cupti_.Subscribe(&subscriber_, &launch_callbacks::on_call, nullptr);
  }
  if (code == cupti::kSuccess) return "";
  subscriber_ = nullptr;
  if (code != cupti::kMultipleSubscribers) return explain(code, "cuptiSubscribe");
  subscriber_refused_ = true;
  const std::string who = owner[0] ? "by '" + std::string(owner, strnlen(owner, sizeof owner)) + "'"
                                   : "by another profiler (nsys, ncu, torch.profiler, Proton)";
  return "CUPTI is held " + who +
         ", and this CUDA version lets one client trace at a time: stop it, or run without it";
}

std::string Session::start_gpu(const StartOptions& options) {
  subscriber_refused_ = false;
  if (cupti_.path.empty() || !options.cupti_override.empty()) {
    if (std::string why = load_cupti(options.cupti_override, options.cupti_candidates, &cupti_); !why.empty())
      return why;
  }
  if (std::string why = subscribe(); !why.empty()) return why;
  if (cupti_.SetThreadIdType) cupti_.SetThreadIdType(cupti::kThreadIdSystem);
  uint8_t zeroed = 1;
  size_t zeroed_bytes = sizeof zeroed;
  cupti_.ActivitySetAttribute(cupti::kAttributeZeroedBuffer, &zeroed_bytes, &zeroed);
  buffers_.prepare(options.buffer_bytes, options.buffers_ahead, options.buffers_most,
                   cupti_.version >= cupti::kVersionRefusableBuffers);

  cupti::Result code = cupti_.ActivityRegisterCallbacks(&on_buffer_requested, &on_buffer_completed);
  if (code == cupti::kSuccess) code = cupti_.ActivityEnable(ActivityKind::kConcurrentKernel);
  if (code != cupti::kSuccess) {
    stop_gpu();
    return explain(code, "cuptiActivityEnable(CONCURRENT_KERNEL)");
  }
  for (const ActivityKind kind : kKinds) {
    code = cupti_.ActivityEnable(kind);
    if (code != cupti::kSuccess) {
      writer_.diagnostic(now_ns(), 2,
                         "activity kind " + std::to_string(int(kind)) + ": " + cupti_.describe(code));
    }
  }
  // A thread that polls events (NCCL's watchdog) would fill the file with queries that were not ready.
  if (cupti_.ActivityEnableAllSyncRecords) cupti_.ActivityEnableAllSyncRecords(0);
  for (const ActivityKind kind : kKindsOfExistingThings) {
    cupti_.ActivityEnableAndDump ? cupti_.ActivityEnableAndDump(kind) : cupti_.ActivityEnable(kind);
  }
  traced_ = launch_callbacks::traced_calls(cupti_);
  for (const auto& call : traced_) call_names_[call_key(call.domain, call.cbid)] = writer_.intern(call.name);
  launch_callbacks::arm(&rings_, python_);
  for (const auto& call : traced_) {
    code = cupti_.EnableCallback(1, subscriber_, call.domain, call.cbid);
    if (code != cupti::kSuccess)
      writer_.diagnostic(now_ns(), 2, "callback " + call.name + ": " + cupti_.describe(code));
  }
  return "";
}

void Session::stop_gpu() noexcept {
  launch_callbacks::disarm();
  for (const auto& call : traced_) cupti_.EnableCallback(0, subscriber_, call.domain, call.cbid);
  for (const ActivityKind kind : kKinds) cupti_.ActivityDisable(kind);
  for (const ActivityKind kind : kKindsOfExistingThings) cupti_.ActivityDisable(kind);
  flush(true);
  cupti_.Unsubscribe(subscriber_);
  subscriber_ = nullptr;
  traced_.clear();
}

std::string Session::halt() {
  std::lock_guard lock(control_);
  if (state_ != State::kRecording) return "no recording is running in this process";
  if (launch_callbacks::inside_call()) return "a recording cannot be stopped from inside a CUDA call";
  if (gpu_) stop_gpu();
  {
    std::lock_guard consumer_lock(consumer_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  consumer_.join();
  drain();
  write_thread_names();
  if (nvtx_) nvtx_injection::stop(writer_);
  writer_.append(spool::Kind::kClock, std::vector{clock_sample()});
  state_ = State::kHalted;
  return "";
}

std::map<std::string, std::string> Session::finish(const std::map<std::string, std::string>& meta) {
  std::lock_guard lock(control_);
  if (state_ != State::kHalted) return {};
  if (python_) python_stacks::stop();
  const auto facts = statistics();
  add_meta(facts);
  add_meta(meta);
  writer_.close();
  buffers_.release();
  rings_.clear();
  state_ = State::kIdle;
  return facts;
}

// ---- the consumer thread ----

void Session::consume() {
  pthread_setname_np(pthread_self(), "plab-recorder");
  uint64_t last_flush = monotonic_ns();
  spool::Clock last_clock = clock_sample();
  std::unique_lock lock(consumer_mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, kDrainPeriod);
    lock.unlock();
    const uint64_t now = monotonic_ns();
    if (now - last_flush >= uint64_t{flush_period_ms_} * 1'000'000) {
      last_flush = now;
      if (gpu_) flush(false);
      const spool::Clock clock = clock_sample();
      writer_.append(spool::Kind::kClock, std::vector{clock});
      const auto drift = static_cast<int64_t>((clock.real_ns - last_clock.real_ns) -
                                              (clock.monotonic_ns - last_clock.monotonic_ns));
      if (static_cast<uint64_t>(std::abs(drift)) > kClockStepNs) {
        writer_.diagnostic(clock.real_ns, 2,
                           "the wall clock was set by " + std::to_string(drift / 1'000'000) +
                               " ms during the recording: times around it are not comparable");
      }
      last_clock = clock;
    }
    drain();
    lock.lock();
  }
}

void Session::drain() {
  std::lock_guard lock(counting_);
  drain_launches();
  drain_activity();
  if (nvtx_) nvtx_injection::drain(writer_);
}

void Session::drain_launches() {
  rings_.drain([this](const LaunchRing& ring, const LaunchEvent& event) {
    const bool driver = event.flags & spool::kApiDriver;
    uint32_t node_name = spool::kNone;
    if (event.flags & spool::kApiBackward) {
      const auto [found, fresh] = node_names_.try_emplace(event.node_type, 0);
      if (fresh) found->second = writer_.intern(autograd_link::node_name(event.node_type));
      node_name = found->second;
    }
    const auto domain = driver ? cupti::Domain::kDriver : cupti::Domain::kRuntime;
    const auto name = call_names_.find(call_key(domain, event.cbid));
    stacks_.use(event.stack);
    ++recorded_calls_;
    if (event.stack) ++calls_with_stack_;
    calls_.push_back({event.start_ns, event.end_ns, static_cast<int64_t>(event.peek_seq),
                      static_cast<int64_t>(event.node_seq), event.node_thread, event.self_thread,
                      ring.thread(), event.correlation,
                      name == call_names_.end() ? spool::kNone : name->second, event.stack, node_name,
                      event.return_value, event.flags, 0});
  });
  stacks_.write_out();
  writer_.append(spool::Kind::kApiCall, calls_);
  calls_.clear();
}

void Session::drain_activity() {
  for (const FilledBuffer& buffer : buffers_.take_filled()) {
    decoder_.decode(buffer.data, buffer.valid_bytes);
    buffers_.give_back(buffer.data);
  }
  decoder_.write_out();
  if (gpu_) {
    buffers_.keep_ahead();
    check_takeover(monotonic_ns());
  }
}

void Session::add_meta(const std::map<std::string, std::string>& meta) noexcept {
  for (const auto& [name, value] : meta) writer_.meta(name, value);
}

// As the kernel knows them: "pt_autograd_0" for torch's workers. Threads that are gone have no name any more.
void Session::write_thread_names() {
  std::vector<spool::Thread> threads;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    if (!std::getline(file, name)) continue;
    const auto thread = static_cast<uint32_t>(std::strtoul(task.path().filename().c_str(), nullptr, 10));
    threads.push_back({thread, writer_.intern(name)});
  }
  writer_.append(spool::Kind::kThread, threads);
}

void Session::flush(bool forced) noexcept {
  const uint64_t begin = monotonic_ns();
  cupti_.ActivityFlushAll(forced ? cupti::kFlushForced : 0);
  size_t dropped = 0;
  if (cupti_.ActivityGetNumDroppedRecords(nullptr, 0, &dropped) != cupti::kSuccess) dropped = 0;
  if (dropped) writer_.diagnostic(now_ns(), 2, "CUPTI dropped " + std::to_string(dropped) + " records");
  std::lock_guard lock(counting_);
  cupti_dropped_ += dropped;
  flush_ns_ += monotonic_ns() - begin;
  ++flushes_;
}

// The activity API has no owner: another client that registers its buffers takes all records, silently.
void Session::check_takeover(uint64_t now) {
  const uint64_t completed = buffers_.usage().completed;
  if (completed != buffers_seen_ || recorded_calls_ == calls_at_last_buffer_) {
    buffers_seen_ = completed;
    calls_at_last_buffer_ = recorded_calls_;
    last_buffer_ns_ = now;
  } else if (!takeover_reported_ && now - last_buffer_ns_ > kTakeoverAfterNs) {
    takeover_reported_ = true;
    writer_.diagnostic(now_ns(), 3,
                       "CUDA calls go on but CUPTI has delivered no records for 5 s: "
                       "another CUPTI client (torch.profiler) has probably taken over");
  }
}

std::map<std::string, std::string> Session::statistics() {
  std::lock_guard lock(counting_);
  const LaunchRings::Totals totals = rings_.totals();
  const auto& counts = decoder_.counts();
  const ActivityBuffers::Usage buffers = buffers_.usage();
  const spool::Writer::Usage file = writer_.usage();
  std::map<std::string, std::string> out{
      {"gpu", gpu_ ? "on" : "off"},
      {"calls", std::to_string(recorded_calls_)},
      {"calls_with_stack", std::to_string(calls_with_stack_)},
      {"kernels", std::to_string(counts.kernels)},
      {"copies", std::to_string(counts.copies)},
      {"sets", std::to_string(counts.sets)},
      {"syncs", std::to_string(counts.syncs)},
      {"graph_launches", std::to_string(counts.graphs)},
      {"records_unknown", std::to_string(counts.unknown)},
      {"records_without_time", std::to_string(counts.without_time)},
      {"stacks", std::to_string(stacks_.count())},
      {"ranges", std::to_string(nvtx_injection::ranges())},
      {"nvtx_libraries", std::to_string(nvtx_injection::attached_libraries())},
      {"dropped_calls", std::to_string(totals.dropped)},
      {"dropped_records", std::to_string(cupti_dropped_)},
      {"starved_buffer_requests", std::to_string(buffers.starved)},
      {"dropped_bytes", std::to_string(file.lost)},
      {"callback_errors", std::to_string(launch_callbacks::errors())},
      {"overhead_flush_ns", std::to_string(flush_ns_)},
      {"overhead_flushes", std::to_string(flushes_)},
      {"overhead_buffer_bytes", std::to_string(buffers.bytes)},
      {"spool_bytes", std::to_string(file.written)},
      {"autograd_link", autograd_link::state()},
  };
  if (totals.cost_samples) {  // one call in LaunchRing::kSampleEvery is timed
    out["overhead_callback_ns"] = std::to_string(totals.cost_ns / totals.cost_samples);
    out["overhead_callback_samples"] = std::to_string(totals.cost_samples);
  }
  if (!cupti_.path.empty()) {
    out["cupti_path"] = cupti_.path;
    out["cupti_version"] = std::to_string(cupti_.version);
  }
  if (file.error) out["write_error"] = std::strerror(file.error);
  return out;
}

}  // namespace plab::recorder
