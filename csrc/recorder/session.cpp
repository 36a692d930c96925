// SPDX-License-Identifier: Apache-2.0
#include "recorder/session.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>

#include "recorder/nvtx/ranges.h"
#include "recorder/python/host_events.h"
#include "recorder/python/stacks.h"
#include "recorder/system/clock.h"
#include "recorder/system/signal_mask.h"
#include "recorder/torch/autograd_link.h"

namespace plab::recorder {

namespace {

constexpr int64_t kClockStepNs = 1'000'000;
constexpr uint32_t kWarning = 2;

// Pairs of both clocks show afterwards whether the wall clock was set during the recording.
spool::Clock clock_sample() noexcept { return {now_ns(), monotonic_ns()}; }

}  // namespace

Session& Session::instance() {
  static auto* const session = new Session;  // never destroyed: CUDA calls may come until the very end
  return *session;
}

Session::Session() {
  pthread_atfork(&Session::before_fork, &Session::after_fork_parent, &Session::after_fork_child);
}

// Only the locks that the program's own calls take. The others may be held while files are written, or during a
// wait for the GIL, which the forking thread may hold.
void Session::before_fork() { nvtx_ranges::before_fork(); }
void Session::after_fork_parent() { nvtx_ranges::after_fork_parent(); }

// The child has none of our threads and must not touch CUPTI: a CUDA context does not survive a fork.
void Session::after_fork_child() {
  Session& session = instance();
  nvtx_ranges::after_fork_child();
  python_stacks::after_fork_child();
  // The threads that held them do not exist here.
  for (std::mutex* mutex :
       {&session.control_, &session.counting_, &session.consumer_mutex_, &session.windows_mutex_}) {
    new (mutex) std::mutex;
  }
  if (session.state_ == State::kIdle) return;
  session.state_ = State::kForked;
  launch_callbacks::disarm();
  host_events::stop();
  CuptiClient::after_fork_child();
  autograd_link::detach();
  PythonSampler::after_fork_child();
  session.writer_.forget();
}

StartResult Session::start(const StartOptions& options) {
  StartResult result;
  // Not waited for: the caller holds the GIL, and a halt() on another thread may need it for the last sample.
  const std::unique_lock lock(control_, std::try_to_lock);
  if (!lock) {
    result.error = "a recording is being started or stopped by another thread";
    return result;
  }
  if (state_ == State::kForked) {
    result.error = "this process was forked from one that recorded, and CUDA tracing does not survive a fork";
    return result;
  }
  if (state_ != State::kIdle) {
    result.error = "a recording is already running in this process";
    return result;
  }
  const spool::Header header{spool::kFormatVersion, static_cast<uint32_t>(getpid()), now_ns()};
  result.error = writer_.open(options.spool_path, header, options.spool_file);
  if (!result.error.empty()) return result;
  state_ = State::kStarting;
  try {
    begin(options, header.start_ns, &result);
  } catch (const std::exception& error) {  // no memory, no thread
    result.error = std::string("the recording could not be started: ") + error.what();
  }
  if (result.error.empty()) {
    result.started = true;
    state_ = State::kRecording;
    return result;
  }
  stop_consumer();
  if (gpu_) cupti_.stop();
  if (nvtx_) survive([this] { nvtx_ranges::stop(writer_, keep_); });
  if (python_) python_stacks::stop();
  writer_.discard();
  state_ = State::kIdle;
  return result;
}

void Session::begin(const StartOptions& options, uint64_t start_ns, StartResult* result) {
  gpu_ = nvtx_ = python_ = sampling_ = false;
  recorded_calls_ = calls_with_stack_ = waits_ = own_ns_ = 0;
  launched_ = false;
  failures_ = 0;
  flush_period_ms_ = options.flush_period_ms;
  drain_period_ms_ = options.drain_period_ms;
  armed_ = !options.paused;
  open_ = !options.paused;
  limit_reached_ = false;
  most_bytes_ = options.most_bytes;
  start_ns_ = start_ns;
  windows_.clear();
  stacks_.reset();
  samples_.clear();
  rings_.clear();
  node_names_.clear();
  last_clock_ = clock_sample();
  writer_.append(std::vector{last_clock_});
  ticks_.start();

  if (options.python_stacks) {
    python_ = python_stacks::start(&result->stack_reason);
  } else {
    result->stack_reason = "switched off";
  }
  nvtx_ = options.nvtx;
  if (nvtx_) nvtx_ranges::start();
  if (options.gpu) {
    CuptiOptions cupti = options.cupti;
    cupti.graph_nodes |= options.paused;  // pause() explains it
    result->gpu_reason = cupti_.start(cupti, &rings_, python_);
    gpu_ = result->gpu_reason.empty();
    if (gpu_ && !armed_) cupti_.pause();
    if (cupti_.refused()) {  // a recording without GPU activity would mislead
      result->error = result->gpu_reason;
      return;
    }
  } else {
    result->gpu_reason = "switched off";
  }
  result->gpu = gpu_;
  if (python_) host_events::start();
  stopping_ = false;
  sampling_ = python_ && options.sample_period_ns;
  const SignalsBlocked for_new_threads;
  consumer_ = std::thread(&Session::consume, this);  // after everything that it reads is set up
  // Before the first CUDA call there is no GPU idle time to explain, so imports are left out.
  if (sampling_) sampler_.start(options.sample_period_ns, [this] { return open_ && (launched_ || !gpu_); });
}

bool Session::warm_up() {
  std::lock_guard lock(control_);
  if (state_ != State::kRecording || armed_ || limit_reached_) return false;
  armed_ = true;
  if (gpu_) cupti_.resume(&rings_, python_);
  return true;
}

bool Session::open_window(int64_t step) {
  warm_up();
  std::lock_guard lock(control_);
  if (state_ != State::kRecording || !armed_ || open_) return false;
  open_ = true;
  // There may have been only a close_window() and no pause() before. Re-arming drops the calls that other threads
  // are in, so it comes first: those calls began before the window.
  if (gpu_) launch_callbacks::rearm(&rings_, python_);
  begin_window(now_ns(), step);
  return true;
}

bool Session::close_window() {
  std::lock_guard lock(control_);
  if (state_ != State::kRecording || !open_) return false;
  close_locked();
  return true;
}

bool Session::pause() {
  std::lock_guard lock(control_);
  if (state_ != State::kRecording || !armed_) return false;
  pause_locked();
  return true;
}

void Session::close_locked() {
  launch_callbacks::disarm();
  open_ = false;
  survive([this] {
    if (windows_.empty()) begin_window(start_ns_, -1);  // the recording began without a schedule
    end_window();
  });
}

void Session::pause_locked() {
  if (open_) close_locked();
  if (gpu_) cupti_.pause();
  armed_ = false;
}

void Session::begin_window(uint64_t start_ns, int64_t step) {
  std::lock_guard lock(windows_mutex_);
  windows_.push_back({start_ns, 0, step});
  writer_.append(std::vector{windows_.back()});
}

void Session::end_window() {
  std::lock_guard lock(windows_mutex_);
  windows_.back().end_ns = now_ns();
  writer_.append(std::vector{windows_.back()});
}

// A recording without pauses has no windows: it contains everything.
bool Session::in_window(uint64_t start_ns, uint64_t end_ns) {
  std::lock_guard lock(windows_mutex_);
  if (windows_.empty()) return open_;
  const auto after = std::upper_bound(
      windows_.begin(), windows_.end(), end_ns,
      [](uint64_t time_ns, const spool::Window& window) { return time_ns < window.start_ns; });
  if (after == windows_.begin()) return false;
  const spool::Window& last = *(after - 1);  // that begins in time: windows are in order and apart
  return !last.end_ns || start_ns <= last.end_ns;
}

std::string Session::halt() {
  std::lock_guard lock(control_);
  if (state_ != State::kRecording) return "no recording is running in this process";
  // In a pause this is unknown: the end of a call that began before the pause was not seen.
  if (armed_ && launch_callbacks::inside_call())
    return "a recording cannot be stopped from inside a CUDA call";
  if (gpu_) cupti_.stop();
  if (!windows_.empty() && open_) survive([this] { end_window(); });
  host_events::stop();
  sampler_.stop();
  stop_consumer();
  drain();
  if (gpu_) survive([this] { cupti_.compare_launches_with_records(start_ns_); });
  survive([this] { write_thread_names(); });
  if (nvtx_) survive([this] { nvtx_ranges::stop(writer_, keep_); });
  if (failures_) writer_.diagnostic(now_ns(), kWarning, "the recorder had no memory for some of its work");
  survive([this] { writer_.append(std::vector{clock_sample()}); });
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
  cupti_.release();
  rings_.clear();
  state_ = State::kIdle;
  return facts;
}

void Session::stop_consumer() {
  if (!consumer_.joinable()) return;
  {
    std::lock_guard lock(consumer_mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  consumer_.join();
}

// ---- the consumer thread ----

void Session::consume() {
  pthread_setname_np(pthread_self(), "plab-recorder");
  uint64_t last_flush = monotonic_ns();
  std::unique_lock lock(consumer_mutex_);
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::milliseconds(drain_period_ms_));
    lock.unlock();
    const uint64_t now = monotonic_ns();
    if (now - last_flush >= uint64_t{flush_period_ms_} * 1'000'000) {
      last_flush = now;
      if (gpu_) cupti_.flush(false);
      survive([this] { check_clock(); });
    }
    drain();
    survive([this] { keep_below_limit(); });
    lock.lock();
  }
}

// What is still pending is written: CUPTI's buffers, the names of nodes and threads.
void Session::keep_below_limit() {
  if (most_bytes_ == 0 || limit_reached_ || !armed_ || writer_.usage().written < most_bytes_) return;
  const std::unique_lock lock(control_, std::try_to_lock);  // halt() holds it while it waits for this thread
  if (!lock || state_ != State::kRecording || !armed_) return;
  limit_reached_ = true;
  pause_locked();
  writer_.diagnostic(
      now_ns(), kWarning,
      "the recording ended here: its capture file had reached " + std::to_string(most_bytes_) + " bytes");
}

void Session::check_clock() {
  const spool::Clock clock = clock_sample();
  writer_.append(std::vector{clock});
  const auto real = static_cast<int64_t>(clock.real_ns - last_clock_.real_ns);
  const auto monotonic = static_cast<int64_t>(clock.monotonic_ns - last_clock_.monotonic_ns);
  last_clock_ = clock;
  if (std::abs(real - monotonic) <= kClockStepNs) return;
  const std::string text = "the wall clock was set by " + std::to_string((real - monotonic) / 1'000'000) +
                           " ms during the recording: times around it are not comparable";
  writer_.diagnostic(clock.real_ns, kWarning, text);
}

void Session::drain() noexcept {
  std::lock_guard lock(counting_);
  survive([this] { drain_launches(); });
  if (sampling_) survive([this] { drain_samples(); });
  survive([this] { drain_host_events(); });
  if (gpu_) survive([this] { cupti_.collect(); });
  if (nvtx_) survive([this] { nvtx_ranges::drain(writer_, keep_); });
}

void Session::drain_launches() {
  ticks_.anchor();
  rings_.drain([this](const LaunchRing& ring, const LaunchEvent& event) {
    uint32_t node_name = spool::kNone;
    if (event.flags & spool::kApiBackward) {
      auto found = node_names_.find(event.node_type);
      if (found == node_names_.end()) {
        const uint32_t name = writer_.intern(autograd_link::node_name(event.node_type));
        found = node_names_.emplace(event.node_type, name).first;
      }
      node_name = found->second;
    }
    stacks_.use(event.stack);
    spool::ApiCall call{};
    call.start_ns = ticks_.nanoseconds(event.start_tick);
    call.end_ns = ticks_.nanoseconds(event.end_tick);
    call.peek_seq = static_cast<int64_t>(event.peek_seq);
    call.node_seq = static_cast<int64_t>(event.node_seq);  // UINT64_MAX, "no number", becomes -1
    call.node_thread = event.node_thread;
    call.self_thread = event.self_thread;
    call.thread = ring.thread();
    call.correlation_id = event.correlation;
    const CuptiClient::Call traced = cupti_.call_of(event);
    call.name = traced.name;
    call.stack = event.stack;
    call.node_name = node_name;
    call.return_value = event.return_value;
    call.flags = event.flags;
    call.own_ns = static_cast<uint32_t>(std::llround(event.own_ticks * ticks_.ns_per_tick()));
    const bool waits = traced.wait != synchronization::Wait::kNone;
    if (waits) {
      syncs_.push_back({call.start_ns, call.end_ns, event.context, event.stream, call.correlation_id,
                        static_cast<uint32_t>(traced.wait), spool::kNone, 0});
    }
    try {
      calls_.push_back(call);
    } catch (...) {
      if (waits) syncs_.pop_back();  // the event comes again
      throw;
    }
    ++recorded_calls_;
    own_ns_ += call.own_ns;
    launched_ = true;
    if (event.stack) ++calls_with_stack_;
    if (waits) ++waits_;
    if (traced.launches && event.return_value == 0 && stream_captures::under_way() == 0)
      cupti_.launched(call.correlation_id, call.start_ns);
  });
  stacks_.write_out();
  writer_.append(calls_);
  calls_.clear();
  writer_.append(syncs_);
  syncs_.clear();
}

void Session::drain_samples() {
  if (samples_.empty()) samples_ = sampler_.take();
  for (const spool::Sample& sample : samples_) stacks_.use(sample.stack);
  stacks_.write_out();
  writer_.append(samples_);
  samples_.clear();
}

void Session::drain_host_events() {
  std::vector<spool::HostEvent> kept;
  for (const host_events::Event& event : host_events::take()) {
    if (!in_window(event.start_ns, event.end_ns)) continue;
    stacks_.use(event.stack);
    kept.push_back({event.start_ns, event.end_ns, event.thread, event.stack, writer_.intern(event.text), 0});
  }
  stacks_.write_out();
  writer_.append(kept);
}

// ---- facts ----

void Session::add_meta(const std::map<std::string, std::string>& meta) noexcept {
  if (state_ == State::kForked) return;  // the writer's lock may be held by a thread that does not exist here
  for (const auto& [name, value] : meta) writer_.meta(name, value);
}

// The names that the Linux kernel has: "pt_autograd_0" for torch's workers. Threads that have ended have no name.
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
  writer_.append(threads);
}

std::map<std::string, std::string> Session::statistics() {
  if (state_ == State::kForked) return {};  // as in add_meta()
  std::lock_guard lock(counting_);
  std::map<std::string, std::string> out{{"gpu", gpu_ ? "on" : "off"},
                                         {"autograd_link", autograd_link::state()},
                                         {"call_clock", ticks_.state()}};
  cupti_.add_statistics(&out);
  const LaunchRings::Totals totals = rings_.totals();
  const spool::Writer::Usage file = writer_.usage();
  const auto put = [&out](const char* name, uint64_t value) { out[name] = std::to_string(value); };
  put("calls", recorded_calls_);
  put("syncs", waits_);
  put("calls_with_stack", calls_with_stack_);
  put("stacks", stacks_.count());
  put("ranges", nvtx_ranges::count());
  put("nvtx_libraries", nvtx_ranges::attached_libraries());
  put("dropped_calls", totals.dropped);
  put("dropped_bytes", file.lost);
  put("unwritten_records", file.records_lost);
  put("texts_cut", file.texts_cut);
  put("dropped_ranges", nvtx_ranges::lost());
  if (failures_) put("recorder_failures", failures_);
  put("callback_errors", launch_callbacks::errors());
  put("spool_bytes", file.written);
  {
    std::lock_guard windows_lock(windows_mutex_);
    if (!windows_.empty() || !open_) put("windows", windows_.size());
  }
  if (sampling_) {
    const PythonSampler::Totals sampled = sampler_.totals();
    put("sample_moments", sampled.moments);
    put("samples_late", sampled.late);
    put("samples_lost", sampled.lost);
    put("overhead_sampling_ns", sampled.cost_ns);
  }
  if (limit_reached_) put("stopped_at_bytes", most_bytes_);
  if (totals.exit_samples &&
      recorded_calls_) {  // one exit in LaunchRing::kSampleEvery is timed, and every entry
    const double ticks = static_cast<double>(totals.exit_ticks) / static_cast<double>(totals.exit_samples);
    const uint64_t exit_ns = std::llround(ticks * ticks_.ns_per_tick());
    put("overhead_callback_ns", own_ns_ / recorded_calls_ + exit_ns);
    put("overhead_exit_ns", exit_ns);
  }
  if (file.error == EBADF) {
    out["write_error"] = "the program closed the capture file, and it is no longer at its path";
  } else if (file.error) {
    out["write_error"] = std::strerror(file.error);
  }
  return out;
}

}  // namespace plab::recorder
