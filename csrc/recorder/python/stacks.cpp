// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/stacks.h"

#include <Python.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "recorder/python/code.h"
#include "recorder/python/frames.h"
#include "recorder/python/self_test.h"
#include "recorder/python/stack_trie.h"
#include "recorder/python/thread_stacks.h"

namespace plab::recorder {
namespace {

// From 3.12 on the interpreter reports when a code object is freed. Before, an address may be reused silently for
// another code object. So the content is compared at every capture until the object is pinned: kept alive by a
// reference that is taken while the GIL is held.
constexpr bool kDeathsAreTold = PY_VERSION_HEX >= 0x030C0000;
static_assert(python_stacks::kMaxDepth == PLAB_MAX_FRAMES);

struct Known {
  uint32_t code;
  uint64_t content;
  bool pinned;
};

// Lock order: the GIL may be held when `mutex` is taken, never the other way round.
struct Shared {
  std::mutex mutex;
  StackTrie trie;
  std::unordered_map<const PyCodeObject*, Known> by_address;
  PyInterpreterState* interpreter = nullptr;
  uint32_t truncation_code = StackTrie::kNoCode;
};

std::atomic<Shared*> g_active{nullptr};  // null: captures are off
Shared* g_shared = nullptr;              // lives on after stop(), and into the next start()
std::atomic<uint32_t> g_epoch{1};        // increases when an address may have been reused
std::atomic<bool> g_pin_requested{false};
std::atomic<uint64_t> g_truncated{0}, g_foreign{0}, g_failed{0};
// The frames that launched the user's script, outermost first, and their thread. Their code objects are kept alive,
// so no other code can get their address; a launcher that was replaced stays readable.
struct Launcher {
  uint64_t thread = 0;
  std::vector<const PyCodeObject*> code;
};
std::atomic<const Launcher*> g_launcher{nullptr};

// How many of the outermost frames are the launcher's. A greenlet has none of them, on whatever thread: its
// chain of frames begins with its own function.
[[gnu::cold]] int launcher_frames(PyThreadState* thread, const PlabFrames& frames) {
  const Launcher* launcher = g_launcher.load(std::memory_order_acquire);
  if (launcher == nullptr || thread->id != launcher->thread) return 0;
  if (frames.truncated) return 0;  // they were not reached
  const int most = std::min(frames.count, static_cast<int>(launcher->code.size()));
  int found = 0;
  while (found < most && plab_frame(&frames, frames.count - 1 - found).code == launcher->code[found]) ++found;
  return found;
}

// GIL held. Pins what the running frames of all threads execute: these objects are alive for certain.
void pin_running_code(Shared& shared) {
  const auto frames = std::make_unique<PlabFrames>();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(shared.interpreter); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    plab_walk_frames(thread, frames.get());
    const std::lock_guard lock(shared.mutex);
    for (int i = 0; i < frames->count; ++i) {
      const PyCodeObject* code = plab_frame(frames.get(), i).code;
      const auto known = shared.by_address.find(code);
      if (known == shared.by_address.end() || known->second.pinned) continue;
      if (known->second.content != python_code::content(code)) continue;
      Py_INCREF(const_cast<PyCodeObject*>(code));
      known->second.pinned = true;
    }
  }
}

// A pending call of the interpreter: runs on the main thread, between two instructions, with the GIL.
int pin_when_asked(void*) {
  g_pin_requested = false;
  if (Shared* shared = g_active.load()) {
    try {
      pin_running_code(*shared);
    } catch (...) {
      g_failed.fetch_add(1, std::memory_order_relaxed);  // out of memory: contents stay compared
    }
  }
  return 0;
}

// Which code is at this address? Mutex held, by a thread that executes it.
Known identify(Shared& shared, const PyCodeObject* code) {
  const auto known = shared.by_address.find(code);
  const bool trusted = known != shared.by_address.end() && (kDeathsAreTold || known->second.pinned);
  if (trusted) return known->second;
  const uint64_t content = python_code::content(code);
  if (known != shared.by_address.end() && known->second.content == content) return known->second;
  uint32_t id = shared.trie.find_code(content);
  if (id == StackTrie::kNoCode) {
    id = shared.trie.add_code(content, python_code::file(code), python_code::function(code),
                              python_code::first_line(code));
  }
  return shared.by_address[code] = {id, content, false};
}

[[gnu::cold]] ResolvedFrame resolve_frame(Shared& shared, StackId parent, const PlabFrame& frame) {
  if (!python_code::is_code(frame.code)) return {parent, false};  // the interpreter's own frame
  const std::lock_guard lock(shared.mutex);
  if (g_active.load(std::memory_order_relaxed) == nullptr) return {parent, false};
  const Known known = identify(shared, frame.code);
  StackId node = shared.trie.find(parent, known.code, frame.offset);
  if (node == 0) {
    node = shared.trie.add(parent, known.code, frame.offset, python_code::line(frame.code, frame.offset));
  }
  return {node, kDeathsAreTold || known.pinned};
}

[[gnu::cold]] StackId truncation_node(Shared& shared) {
  const std::lock_guard lock(shared.mutex);
  if (shared.truncation_code == StackTrie::kNoCode) {
    shared.truncation_code = shared.trie.add_code(0, "", "<truncated>", 0);
  }
  const StackId known = shared.trie.find(0, shared.truncation_code, 0);
  return known != 0 ? known : shared.trie.add(0, shared.truncation_code, 0, 0);
}

#if PY_VERSION_HEX >= 0x030C0000
int g_watcher = -1;

// GIL held; `code` is alive for the last time. Must not touch its reference count.
int on_code_event(PyCodeEvent event, PyCodeObject* code) {
  Shared* shared = g_active.load();
  if (event != PY_CODE_EVENT_DESTROY || shared == nullptr) return 0;
  const std::lock_guard lock(shared->mutex);
  if (shared->by_address.erase(code) != 0) g_epoch.fetch_add(1);
  return 0;
}

bool watch_code(std::string* why_not) {
  if (g_watcher >= 0) return true;  // a forked child has its parent's
  g_watcher = PyCode_AddWatcher(on_code_event);
  if (g_watcher >= 0) return true;
  PyErr_Clear();
  *why_not = "all eight code watchers of the interpreter are taken by other tools";
  return false;
}

void unwatch_code() {
  if (g_watcher >= 0 && PyCode_ClearWatcher(g_watcher) != 0) PyErr_Clear();
  g_watcher = -1;
}
#else
bool watch_code(std::string*) { return true; }
void unwatch_code() {}
#endif

}  // namespace

namespace python_stacks {

bool start(std::string* why_not) {
  if (g_active.load() != nullptr) return true;
  if (const char* reason = plab_frames_unusable()) return *why_not = reason, false;
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    return *why_not = "stacks are taken in the main interpreter only", false;
  }
  if (!python_stacks_self_test(why_not)) return false;
  if (!watch_code(why_not)) return false;
  if (g_shared == nullptr) {
    g_shared = new Shared;
    g_shared->interpreter = PyInterpreterState_Main();
  }
  g_epoch.fetch_add(1);
  g_active.store(g_shared);
  return true;
}

[[gnu::hot]] StackId capture(ThreadStacks** known) noexcept {
  if (g_active.load(std::memory_order_relaxed) == nullptr) return 0;
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return 0;
  ThreadStacks* mine = known != nullptr && *known != nullptr ? *known : this_thread_stacks(known);
  return mine == nullptr ? 0 : capture_of(thread, *mine);
}

[[gnu::hot]] StackId capture_of(PyThreadState* thread, ThreadStacks& memory) noexcept {
  Shared* shared = g_active.load(std::memory_order_acquire);
  if (shared == nullptr) return 0;
  if (thread->interp != shared->interpreter) {
    g_foreign.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  const uint32_t epoch = g_epoch.load(std::memory_order_acquire);
  PlabFrames& frames = memory.frames();
  plab_walk_frames(thread, &frames);
  bool unpinned = false;
  StackId stack = 0;
  try {
    const StackId root = frames.truncated ? truncation_node(*shared) : 0;
    stack = memory.find(
        root, epoch, [&] { return launcher_frames(thread, frames); },
        [&](StackId parent, const PlabFrame& frame) {
          const ResolvedFrame found = resolve_frame(*shared, parent, frame);
          unpinned |= !found.lasting;
          return found;
        });
  } catch (...) {
    g_failed.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  // Stopped meanwhile: the stack may be incomplete.
  if (g_active.load(std::memory_order_relaxed) != shared) return 0;
  if (frames.truncated) g_truncated.fetch_add(1, std::memory_order_relaxed);
  // The main thread pins at its next chance; this thread cannot know here whether it holds the GIL.
  if (!kDeathsAreTold && unpinned && !g_pin_requested.exchange(true)) {
    if (Py_AddPendingCall(pin_when_asked, nullptr) != 0) g_pin_requested = false;  // the queue is full
  }
  return stack;
}

void hide_callers() {
  PyThreadState* thread = PyThreadState_Get();
  const auto frames = std::make_unique<PlabFrames>();
  plab_walk_frames(thread, frames.get());
  if (frames->truncated) return;
  auto launcher = std::make_unique<Launcher>();
  launcher->thread = thread->id;
  for (int i = frames->count - 1; i >= 0; --i) {
    const PyCodeObject* code = plab_frame(frames.get(), i).code;
    Py_INCREF(const_cast<PyCodeObject*>(code));
    launcher->code.push_back(code);
  }
  g_launcher.store(launcher.release(), std::memory_order_release);
  g_epoch.fetch_add(1);  // what a stack had of them is known no more
}

void resolve() {
  Shared* shared = g_active.load();
  if (!kDeathsAreTold && shared != nullptr) pin_running_code(*shared);
}

Losses losses() { return {g_truncated.load(), g_foreign.load(), g_failed.load()}; }

size_t node_count() {
  if (g_shared == nullptr) return 0;
  const std::lock_guard lock(g_shared->mutex);
  return g_shared->trie.node_count();
}

StackNode node(StackId id) {
  const std::lock_guard lock(g_shared->mutex);
  return g_shared->trie.node(id);
}

size_t string_count() {
  if (g_shared == nullptr) return 0;
  const std::lock_guard lock(g_shared->mutex);
  return g_shared->trie.string_count();
}

const std::string& string(uint32_t index) {
  const std::lock_guard lock(g_shared->mutex);
  return g_shared->trie.string(index);
}

void stop() {
  Shared* shared = g_active.exchange(nullptr);
  if (shared == nullptr) return;
  unwatch_code();
  std::unordered_map<const PyCodeObject*, Known> forgotten;
  {
    const std::lock_guard lock(shared->mutex);
    forgotten.swap(shared->by_address);
    g_epoch.fetch_add(1);
  }
  for (const auto& [code, known] : forgotten) {
    if (known.pinned) Py_DECREF(const_cast<PyCodeObject*>(code));
  }
}

void after_fork_child() noexcept {
  g_active.store(nullptr);
  g_shared = nullptr;  // leaked: the parent's threads may have held its lock
  g_epoch.fetch_add(1);
  g_pin_requested = false;
}

}  // namespace python_stacks
}  // namespace plab::recorder
