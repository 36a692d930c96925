// SPDX-License-Identifier: Apache-2.0
#include "recorder/nvtx/ranges.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recorder/system/clock.h"
#include "recorder/system/fork_safe_mutex.h"

namespace plab::recorder::nvtx_ranges {
namespace {

using spool::Range;
using spool::RangeType;

// One per thread; the mutex is contended only while the consumer takes what is finished.
struct ThreadRanges {
  std::mutex mutex;
  uint32_t thread = 0;
  uint32_t session = 0;
  std::unordered_map<uint32_t, std::vector<Event>> open;  // by domain
  std::vector<Event> finished;
  std::atomic<bool> owner_gone{false};
};

struct Registry {
  ForkSafeMutex mutex;
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  std::unordered_map<uint64_t, Event> started;  // start/end pairs may cross threads
};
// Never destroyed: NVTX calls come until the very end.
std::atomic<Registry*> all_threads{new Registry};
Registry& registry() { return *all_threads.load(std::memory_order_acquire); }

std::atomic<bool> is_recording{false};
std::atomic<bool> is_expected{false};
std::atomic<uint32_t> session{0};
std::atomic<uint32_t> attached{0};
std::atomic<uint64_t> next_range_id{1};
std::atomic<uint64_t> handed_over{0}, lost_events{0};
std::atomic<void (*)()> watcher{nullptr};
std::string watched_name;  // written only while watcher is null and no range ends

void tell_watcher(const Event& event) {
  void (*const ended)() = watcher.load(std::memory_order_acquire);
  if (ended && event.text == watched_name) ended();
}

// Without a destructor: thread-locals of the program may be destroyed after ours and use ranges.
struct Mine {
  std::shared_ptr<ThreadRanges>* ranges = nullptr;
  bool ending = false;  // this thread's Owner is gone
};
static_assert(std::is_trivially_destructible_v<Mine>);
constinit thread_local Mine t_mine;

struct Owner {
  ~Owner() {
    if (t_mine.ranges) (*t_mine.ranges)->owner_gone = true;
    delete t_mine.ranges;
    t_mine = {nullptr, true};
  }
};

// Calls after the Owner is gone use separate memory. It is never freed, because there is no later point in the
// thread's life at which to do so.
std::shared_ptr<ThreadRanges>& this_threads_own() {
  if (!t_mine.ranges) {
    if (!t_mine.ending) {
      static thread_local Owner owner;
      (void)owner;
    }
    t_mine.ranges = new std::shared_ptr<ThreadRanges>(std::make_shared<ThreadRanges>());
    (*t_mine.ranges)->thread = static_cast<uint32_t>(syscall(SYS_gettid));
  }
  return *t_mine.ranges;
}

ThreadRanges& this_thread() {
  const std::shared_ptr<ThreadRanges>& own = this_threads_own();
  ThreadRanges& mine = *own;
  const uint32_t current = session.load(std::memory_order_relaxed);
  if (mine.session != current) {
    {
      std::lock_guard lock(mine.mutex);
      mine.session = current;
      mine.open.clear();
      mine.finished.clear();
    }
    std::lock_guard lock(registry().mutex);  // never both locks at once
    registry().threads.push_back(own);
  }
  return mine;
}

// The capture's strings are text.
std::string hexadecimal(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    out += kDigits[static_cast<uint8_t>(byte) >> 4];
    out += kDigits[static_cast<uint8_t>(byte) & 15];
  }
  return out;
}

void write(spool::Writer& writer, const std::vector<Event>& events) try {
  std::vector<Range> ranges;
  ranges.reserve(events.size());
  for (const Event& event : events) {
    ranges.push_back(event.range);
    ranges.back().text = event.text.empty() ? spool::kNone : writer.intern(event.text);
    ranges.back().data = event.data.empty() ? spool::kNone : writer.intern(hexadecimal(event.data));
  }
  writer.append(ranges);
  handed_over += events.size();
} catch (...) {
  lost_events += events.size();
  throw;
}

}  // namespace

Event make_event(RangeType type, const nvtx_names::Domain* domain) {
  Event event;
  event.range.type = static_cast<uint32_t>(type);
  event.range.domain = domain ? domain->id : 0;
  event.range.category = event.range.color = event.range.text = event.range.data = spool::kNone;
  return event;
}

int push(Event event) {
  ThreadRanges& mine = this_thread();
  std::lock_guard lock(mine.mutex);
  auto& stack = mine.open[event.range.domain];
  event.range.thread = mine.thread;
  event.range.start_ns = now_ns();
  stack.push_back(std::move(event));
  return static_cast<int>(stack.size()) - 1;
}

int pop(uint32_t domain, uint64_t end_ns, const std::string& data) {
  ThreadRanges& mine = this_thread();
  std::unique_lock lock(mine.mutex);
  auto& stack = mine.open[domain];
  if (stack.empty()) return -1;  // pushed before the recording, or never
  Event event = std::move(stack.back());
  stack.pop_back();
  const int level = static_cast<int>(stack.size());
  event.range.end_ns = end_ns;
  event.data += data;
  mine.finished.push_back(event);
  lock.unlock();
  tell_watcher(event);
  return level;
}

void mark(Event event) {
  ThreadRanges& mine = this_thread();
  event.range.thread = mine.thread;
  event.range.start_ns = now_ns();
  std::lock_guard lock(mine.mutex);
  mine.finished.push_back(std::move(event));
}

uint64_t range_start(Event event) {
  const uint64_t id = next_range_id.fetch_add(1);
  event.range.thread = this_thread().thread;
  event.range.range_id = id;
  std::lock_guard lock(registry().mutex);
  event.range.start_ns = now_ns();
  registry().started.emplace(id, std::move(event));
  return id;
}

void range_end(uint64_t id, uint64_t end_ns, const std::string& data) {
  ThreadRanges& mine = this_thread();
  Event event;
  {
    std::lock_guard lock(registry().mutex);
    const auto found = registry().started.find(id);
    if (found == registry().started.end()) return;  // ended already, or started before the recording
    event = std::move(found->second);
    registry().started.erase(found);
  }
  event.range.end_ns = end_ns;
  event.range.end_thread = mine.thread;
  event.data += data;
  {
    std::lock_guard lock(mine.mutex);
    mine.finished.push_back(event);
  }
  tell_watcher(event);
}

void start() noexcept {
  handed_over = lost_events = 0;
  session.fetch_add(1);
  nvtx_names::start();
  is_recording = true;
}

bool recording() noexcept { return is_recording.load(std::memory_order_relaxed); }

void watch(const std::string& name, void (*ended)()) {
  watcher = nullptr;
  if (!ended) return;
  watched_name = name;
  watcher.store(ended, std::memory_order_release);
}

void drain(spool::Writer& writer, const Keep& keep) {
  nvtx_names::write_new(writer);  // before the ranges that use them: the process may be killed at any time
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  {
    std::lock_guard lock(registry().mutex);
    threads = registry().threads;
  }
  std::vector<Event> events;
  for (const auto& thread : threads) {
    const bool last = thread->owner_gone;  // read before taking: nothing follows
    {
      std::lock_guard lock(thread->mutex);
      events.clear();
      std::swap(events, thread->finished);
    }
    std::erase_if(events, [&](const Event& event) {
      return !keep(event.range.start_ns, event.range.end_ns ? event.range.end_ns : event.range.start_ns);
    });
    write(writer, events);
    // A range that its thread left open is kept for stop().
    const auto& open = thread->open;
    if (!last || !std::ranges::all_of(open, [](const auto& stack) { return stack.second.empty(); })) continue;
    std::lock_guard lock(registry().mutex);
    std::erase(registry().threads, thread);
  }
}

void stop(spool::Writer& writer, const Keep& keep) {
  is_recording = false;
  watcher = nullptr;
  drain(writer, keep);
  std::vector<Event> left;
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  {
    std::lock_guard lock(registry().mutex);
    std::swap(threads, registry().threads);
    for (auto& [id, event] : registry().started) left.push_back(std::move(event));
    registry().started.clear();
  }
  for (const auto& thread : threads) {
    std::lock_guard lock(thread->mutex);
    for (auto& [domain, stack] : thread->open) left.insert(left.end(), stack.begin(), stack.end());
    thread->open.clear();
  }
  write(writer, left);
  nvtx_names::write_threads_again(writer);
}

void before_fork() noexcept {
  registry().mutex.before_fork();
  nvtx_names::before_fork();
}
void after_fork_parent() noexcept {
  nvtx_names::after_fork_parent();
  registry().mutex.after_fork_parent();
}
void after_fork_child() noexcept {
  is_recording = false;
  nvtx_names::after_fork_child();
  if (registry().mutex.after_fork_child()) return;
  if (auto* fresh = new (std::nothrow) Registry) all_threads = fresh;
}
uint64_t count() noexcept { return handed_over; }
uint64_t lost() noexcept { return lost_events; }
void expect_recording() noexcept { is_expected = true; }
bool expected() noexcept { return is_recording || is_expected; }
void library_attached() noexcept { ++attached; }
uint32_t attached_libraries() noexcept { return attached; }

}  // namespace plab::recorder::nvtx_ranges
