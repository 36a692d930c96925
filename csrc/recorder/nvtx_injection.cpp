// SPDX-License-Identifier: Apache-2.0
#include "recorder/nvtx_injection.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recorder/clock.h"
#include "recorder/nvtx_abi.h"

namespace plab::recorder::nvtx_injection {
namespace {

using trace::spool::Payload;
using trace::spool::Range;
using trace::spool::RangeType;
namespace spool = trace::spool;

struct Event {
  Range range{};
  std::string text;
};

struct Domain {
  uint32_t id;
  std::string name;
};

struct RegisteredString {
  std::string text;
};

// Domains and registered strings live as long as the process: a library keeps their handles.
struct Names {
  std::mutex mutex;
  std::deque<Domain> domains;
  std::deque<RegisteredString> strings;
  std::vector<Event> events;  // domains and categories, told again in every recording
  std::vector<std::pair<uint32_t, std::string>> threads;
};
Names& names() {
  static auto* const all = new Names;  // never destroyed: NVTX calls come until the very end
  return *all;
}

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
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  std::unordered_map<uint64_t, Event> process_ranges;  // start/end pairs may cross threads
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

std::atomic<bool> recording{false};
std::atomic<uint32_t> session{0};
std::atomic<uint32_t> attached{0};
std::atomic<uint64_t> next_range_id{1};
std::atomic<uint64_t> handed_over{0};

struct Owner {
  std::shared_ptr<ThreadRanges> ranges;
  ~Owner() {
    if (ranges) ranges->owner_gone = true;
  }
};
thread_local Owner owner;

ThreadRanges& this_thread() {
  if (!owner.ranges) {
    owner.ranges = std::make_shared<ThreadRanges>();
    owner.ranges->thread = static_cast<uint32_t>(syscall(SYS_gettid));
  }
  ThreadRanges& mine = *owner.ranges;
  const uint32_t current = session.load(std::memory_order_relaxed);
  if (mine.session != current) {
    {
      std::lock_guard lock(mine.mutex);
      mine.session = current;
      mine.open.clear();
      mine.finished.clear();
    }
    std::lock_guard lock(registry().mutex);  // never both locks at once
    registry().threads.push_back(owner.ranges);
  }
  return mine;
}

uint32_t domain_id(const void* handle) { return handle ? static_cast<const Domain*>(handle)->id : 0; }

Event make_event(RangeType type, const void* domain, const char* text) {
  Event event;
  event.range.type = static_cast<uint32_t>(type);
  event.range.domain = domain_id(domain);
  event.range.category = event.range.color = spool::kNone;
  if (text) event.text = text;
  return event;
}

std::string narrow(const wchar_t* wide) {
  std::string text;
  for (; *wide; ++wide) {
    const auto c = static_cast<uint32_t>(*wide);
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3f)),
               static_cast<char>(0x80 | (c & 0x3f))};
    } else {
      text += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3f)),
               static_cast<char>(0x80 | (c >> 6 & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    }
  }
  return text;
}

Event make_event(RangeType type, const void* domain, const nvtx::EventAttributes* attributes) {
  Event event = make_event(type, domain, static_cast<const char*>(nullptr));
  if (!attributes) return event;
  Range& range = event.range;
  if (attributes->category) range.category = attributes->category;
  if (attributes->color_type == nvtx::kColorArgb) range.color = attributes->color;
  range.payload_type = static_cast<uint32_t>(attributes->payload_type);
  range.payload = attributes->payload;
  if (attributes->message) {
    switch (attributes->message_type) {
      case nvtx::kMessageText:
        event.text = static_cast<const char*>(attributes->message);
        break;
      case nvtx::kMessageWide:
        event.text = narrow(static_cast<const wchar_t*>(attributes->message));
        break;
      case nvtx::kMessageRegistered:
        event.text = static_cast<const RegisteredString*>(attributes->message)->text;
        range.registered = 1;
        break;
      default:
        break;
    }
  }
  return event;
}

// The functions that libraries call. None may throw into its caller; without a recording they do nothing.
template <class Body>
auto guarded(Body body, decltype(body()) otherwise) noexcept -> decltype(body()) {
  if (!recording.load(std::memory_order_relaxed)) return otherwise;
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

template <class Message>
int push(const void* domain, Message message) noexcept {
  return guarded(
      [&] {
        Event event = make_event(RangeType::kPushPop, domain, message);
        ThreadRanges& mine = this_thread();
        std::lock_guard lock(mine.mutex);
        auto& stack = mine.open[event.range.domain];
        event.range.thread = mine.thread;
        event.range.start_ns = now_ns();
        stack.push_back(std::move(event));
        return static_cast<int>(stack.size()) - 1;
      },
      -2);
}

int pop(const void* domain) noexcept {
  return guarded(
      [&] {
        const uint64_t end = now_ns();
        ThreadRanges& mine = this_thread();
        std::lock_guard lock(mine.mutex);
        auto& stack = mine.open[domain_id(domain)];
        if (stack.empty()) return -1;  // pushed before the recording, or never
        stack.back().range.end_ns = end;
        mine.finished.push_back(std::move(stack.back()));
        stack.pop_back();
        return static_cast<int>(stack.size());
      },
      -2);
}

template <class Message>
void mark(const void* domain, Message message) noexcept {
  guarded(
      [&] {
        Event event = make_event(RangeType::kMark, domain, message);
        ThreadRanges& mine = this_thread();
        event.range.thread = mine.thread;
        event.range.start_ns = now_ns();
        std::lock_guard lock(mine.mutex);
        mine.finished.push_back(std::move(event));
        return 0;
      },
      0);
}

template <class Message>
uint64_t range_start(const void* domain, Message message) noexcept {
  return guarded(
      [&] {
        Event event = make_event(RangeType::kStartEnd, domain, message);
        event.range.thread = this_thread().thread;
        event.range.range_id = next_range_id.fetch_add(1);
        const uint64_t id = event.range.range_id;
        std::lock_guard lock(registry().mutex);
        event.range.start_ns = now_ns();
        registry().process_ranges.emplace(id, std::move(event));
        return id;
      },
      uint64_t{0});
}

void range_end(const void*, uint64_t id) noexcept {
  guarded(
      [&] {
        const uint64_t end = now_ns();
        ThreadRanges& mine = this_thread();
        Event event;
        {
          std::lock_guard lock(registry().mutex);
          const auto found = registry().process_ranges.find(id);
          if (found == registry().process_ranges.end()) return 0;
          event = std::move(found->second);
          registry().process_ranges.erase(found);
        }
        event.range.end_ns = end;
        event.range.end_thread = mine.thread;
        std::lock_guard lock(mine.mutex);
        mine.finished.push_back(std::move(event));
        return 0;
      },
      0);
}

// Names matter to every later recording too, so they are kept whether one is running or not.
void name_category(const void* domain, uint32_t category, const char* text) noexcept try {
  Event event = make_event(RangeType::kCategory, domain, text);
  event.range.category = category;
  std::lock_guard lock(names().mutex);
  names().events.push_back(std::move(event));
} catch (...) {
}

void name_thread(uint32_t thread, const char* text) noexcept try {
  std::lock_guard lock(names().mutex);
  names().threads.emplace_back(thread, text ? text : "");
} catch (...) {
}

const void* create_domain(const char* text) noexcept try {
  std::lock_guard lock(names().mutex);
  // Domain 1 is the one that the Python stacks are written under.
  names().domains.push_back({static_cast<uint32_t>(names().domains.size()) + 2, text ? text : ""});
  const Domain& domain = names().domains.back();
  names().events.push_back(make_event(RangeType::kDomain, &domain, text));
  return &domain;
} catch (...) {
  return nullptr;
}

const void* register_string(const void*, const char* text) noexcept try {
  std::lock_guard lock(names().mutex);
  names().strings.push_back({text ? text : ""});
  return &names().strings.back();
} catch (...) {
  return nullptr;
}

void write(spool::Writer& writer, std::vector<Event>& events) {
  std::vector<Range> ranges;
  ranges.reserve(events.size());
  for (Event& event : events) {
    event.range.text = event.text.empty() ? spool::kNone : writer.intern(event.text);
    ranges.push_back(event.range);
  }
  handed_over += ranges.size();
  writer.append(spool::Kind::kRange, ranges);
}

template <class F>
void assign(nvtx::FunctionTable table, unsigned size, unsigned slot, F* function) {
  if (slot < size && table[slot]) *table[slot] = reinterpret_cast<nvtx::Function>(function);
}

bool fill_tables(nvtx::GetExportTable get_export_table) {
  const auto* exported = static_cast<const nvtx::ExportTable*>(get_export_table(nvtx::kExportTableCallbacks));
  if (!exported) return false;
  nvtx::FunctionTable core = nullptr, core2 = nullptr;
  unsigned size = 0, size2 = 0;
  if (!exported->get_module_function_table(nvtx::Module::kCore, &core, &size)) return false;
  if (!exported->get_module_function_table(nvtx::Module::kCore2, &core2, &size2)) return false;
  using Attributes = const nvtx::EventAttributes*;
  using Text = const char*;
  using Handle = const void*;
  assign(core, size, nvtx::kMarkEx, +[](Attributes a) { mark(nullptr, a); });
  assign(core, size, nvtx::kMarkA, +[](Text t) { mark(nullptr, t); });
  assign(core, size, nvtx::kRangeStartEx, +[](Attributes a) { return range_start(nullptr, a); });
  assign(core, size, nvtx::kRangeStartA, +[](Text t) { return range_start(nullptr, t); });
  assign(core, size, nvtx::kRangeEnd, +[](uint64_t id) { range_end(nullptr, id); });
  assign(core, size, nvtx::kRangePushEx, +[](Attributes a) { return push(nullptr, a); });
  assign(core, size, nvtx::kRangePushA, +[](Text t) { return push(nullptr, t); });
  assign(core, size, nvtx::kRangePop, +[] { return pop(nullptr); });
  assign(core, size, nvtx::kNameCategoryA, +[](uint32_t c, Text t) { name_category(nullptr, c, t); });
  assign(core, size, nvtx::kNameOsThreadA, +[](uint32_t thread, Text t) { name_thread(thread, t); });
  assign(core2, size2, nvtx::kDomainMarkEx, +[](Handle d, Attributes a) { mark(d, a); });
  assign(core2, size2, nvtx::kDomainRangeStartEx, +[](Handle d, Attributes a) { return range_start(d, a); });
  assign(core2, size2, nvtx::kDomainRangeEnd, +[](Handle d, uint64_t id) { range_end(d, id); });
  assign(core2, size2, nvtx::kDomainRangePushEx, +[](Handle d, Attributes a) { return push(d, a); });
  assign(core2, size2, nvtx::kDomainRangePop, +[](Handle d) { return pop(d); });
  assign(
      core2, size2, nvtx::kDomainNameCategoryA,
      +[](Handle d, uint32_t c, Text t) { name_category(d, c, t); });
  assign(core2, size2, nvtx::kDomainRegisterStringA, +[](Handle d, Text t) { return register_string(d, t); });
  assign(core2, size2, nvtx::kDomainCreateA, +[](Text t) { return create_domain(t); });
  return true;
}

}  // namespace

void start() noexcept {
  handed_over = 0;
  session.fetch_add(1);
  recording = true;
}

void drain(spool::Writer& writer) {
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  {
    std::lock_guard lock(registry().mutex);
    threads = registry().threads;
  }
  std::vector<Event> events;
  for (const auto& thread : threads) {
    const bool last = thread->owner_gone;
    {
      std::lock_guard lock(thread->mutex);
      events.clear();
      std::swap(events, thread->finished);
    }
    write(writer, events);
    if (last) {
      std::lock_guard lock(registry().mutex);
      std::erase(registry().threads, thread);
    }
  }
}

void stop(spool::Writer& writer) {
  recording = false;
  drain(writer);
  std::vector<Event> left;
  std::vector<std::shared_ptr<ThreadRanges>> threads;
  {
    std::lock_guard lock(registry().mutex);
    std::swap(threads, registry().threads);
    for (auto& [id, event] : registry().process_ranges) left.push_back(event);
    registry().process_ranges.clear();
  }
  for (const auto& thread : threads) {
    std::lock_guard lock(thread->mutex);
    for (auto& [domain, stack] : thread->open) left.insert(left.end(), stack.begin(), stack.end());
    thread->open.clear();
  }
  write(writer, left);
  std::lock_guard lock(names().mutex);
  std::vector<Event> told = names().events;
  write(writer, told);
  std::vector<spool::Thread> named;
  for (const auto& [thread, text] : names().threads) named.push_back({thread, writer.intern(text)});
  writer.append(spool::Kind::kThread, named);
}

void after_fork_child() noexcept { recording = false; }

uint32_t attached_libraries() noexcept { return attached; }
uint64_t ranges() noexcept { return handed_over; }

}  // namespace plab::recorder::nvtx_injection

// Called by every library's NVTX at its first use. 0 (no injection) outside of a recording: a child process
// that inherited the variable, or a library that wakes up after stop().
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    plab::recorder::nvtx::GetExportTable get_export_table) {
  using namespace plab::recorder::nvtx_injection;
  if (!recording || !fill_tables(get_export_table)) return 0;
  ++attached;
  return 1;
}
