// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/sampler.h"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "recorder/python/frames.h"
#include "recorder/python/stacks.h"
#include "recorder/python/thread_stacks.h"
#include "recorder/system/clock.h"

namespace plab::recorder {
namespace {

using spool::Sample;

constexpr size_t kMostSamples = 1 << 20;  // the consumer takes them many times a second
constexpr auto kLongestGrace = std::chrono::microseconds(500);
constexpr uint64_t kForgetEvery = 4096;  // moments

std::atomic<PythonSampler*> g_active{nullptr};
std::atomic<uint64_t> g_left_out{0};  // the state of a thread that is not sampled
std::atomic<bool> g_queued{false};    // our pending call waits for the main thread

// The system's number of a thread, 0 if it is not known.
uint32_t number_of(PyThreadState* thread) {
#if PY_VERSION_HEX >= 0x030B0000
  return static_cast<uint32_t>(thread->native_thread_id);
#else
  // Read without running Python code, which could let other threads go on.
  uint32_t number = 0;
  PyObject* name = PyUnicode_FromString("threading");
  PyObject* module = name ? PyImport_GetModule(name) : nullptr;
  PyObject* active = module ? PyObject_GetAttrString(module, "_active") : nullptr;
  PyObject* key = PyLong_FromUnsignedLong(thread->thread_id);
  PyObject* found = active && key && PyDict_Check(active) ? PyDict_GetItem(active, key) : nullptr;
  PyObject* native = found ? PyObject_GetAttrString(found, "_native_id") : nullptr;
  if (native && PyLong_Check(native)) number = static_cast<uint32_t>(PyLong_AsUnsignedLong(native));
  for (PyObject* object : {name, module, active, key, native}) Py_XDECREF(object);
  PyErr_Clear();
  return number;
#endif
}

}  // namespace

PythonSampler::PythonSampler() = default;
PythonSampler::~PythonSampler() = default;

void PythonSampler::start(uint64_t period_ns, Wanted wanted) {
  period_ns_ = period_ns;
  wanted_ = std::move(wanted);
  stopping_ = false;
  asked_ = false;
  g_left_out = 0;
  {
    const std::lock_guard lock(mutex_);  // the consumer is there already
    totals_ = {};
    samples_.clear();
  }
  threads_.clear();
  g_active = this;
  thread_ = std::thread(&PythonSampler::run, this);
}

void PythonSampler::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
  g_active = nullptr;
}

std::vector<Sample> PythonSampler::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(samples_, {});
}

PythonSampler::Totals PythonSampler::totals() {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void PythonSampler::leave_out_this_thread() noexcept {
  g_left_out = PyThreadState_GetID(PyThreadState_Get());
}

bool PythonSampler::leaves_out_this_thread() noexcept {
  return g_left_out == PyThreadState_GetID(PyThreadState_Get());
}

void PythonSampler::after_fork_child() noexcept { g_active = nullptr; }

void PythonSampler::run() {
  pthread_setname_np(pthread_self(), "plab-sampler");
  const PyGILState_STATE held = PyGILState_Ensure();
  PyThreadState* mine = PyEval_SaveThread();
  state_ = mine;
  const std::chrono::nanoseconds period(period_ns_);
  auto next = std::chrono::steady_clock::now() + period;
  uint64_t failed = 0;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_until(lock, next, [this] { return stopping_; })) {
    lock.unlock();
    try {
      if (wanted_()) tick();
    } catch (...) {  // no memory
      ++failed;
    }
    const auto now = std::chrono::steady_clock::now();
    lock.lock();
    totals_.lost += std::exchange(failed, 0);
    next += period;
    if (next < now) {
      const auto missed = (now - next) / period + 1;
      totals_.late += static_cast<uint64_t>(missed);
      next += missed * period;
    }
  }
  lock.unlock();
  asked_ = false;
  PyEval_RestoreThread(mine);
  threads_.clear();
  PyGILState_Release(held);
}

void PythonSampler::tick() {
  asked_ = true;
  // Still queued from an earlier tick: the main thread is inside of C code.
  if (!g_queued.exchange(true)) {
    if (Py_AddPendingCall(&PythonSampler::serve, nullptr) == 0) {
      plab_interrupt_main_thread();
      const auto grace =
          std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(period_ns_) / 2, kLongestGrace);
      // Not until it has answered: to wake this thread would take the main thread longer than the sample.
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, grace, [this] { return stopping_; });
    } else {
      g_queued = false;  // the queue is full
    }
  }
  if (!asked_) return;
  PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
  if (asked_.exchange(false)) sample();
  PyEval_SaveThread();
}

// The main thread, between two of its instructions.
int PythonSampler::serve(void*) {
  g_queued = false;
  PythonSampler* sampler = g_active.load();
  if (sampler == nullptr || !sampler->asked_.exchange(false)) return 0;
  sampler->sample();
  return 0;
}

void PythonSampler::sample() try {
  const uint64_t begin = monotonic_ns(), now = now_ns();
  const uint64_t moment = totals_.moments + 1;
  std::vector<Sample> found;
  uint64_t unknown = 0;
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Main()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread == state_) continue;
    const uint64_t id = PyThreadState_GetID(thread);
    if (id == g_left_out) continue;
    Thread& known = threads_[id];
    if (!known.stacks) known.stacks = std::make_unique<ThreadStacks>();
    known.seen = moment;
    const StackId stack = python_stacks::capture_of(thread, *known.stacks);
    if (!stack) continue;                                 // no Python runs there
    if (!known.number) known.number = number_of(thread);  // not before: a state may be older than its thread
    if (known.number) {
      found.push_back({now, known.number, stack});
    } else {
      ++unknown;
    }
  }
  if (moment % kForgetEvery == 0) {
    std::erase_if(threads_, [moment](const auto& entry) { return entry.second.seen != moment; });
  }
  const std::lock_guard lock(mutex_);
  const bool full = samples_.size() + found.size() > kMostSamples;
  totals_.lost += unknown + (full ? found.size() : 0);
  if (!full) samples_.insert(samples_.end(), found.begin(), found.end());
  totals_.moments = moment;
  totals_.cost_ns += monotonic_ns() - begin;
} catch (...) {  // no memory; the caller is the interpreter
  const std::lock_guard lock(mutex_);
  ++totals_.lost;
}

}  // namespace plab::recorder
