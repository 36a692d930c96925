// SPDX-License-Identifier: Apache-2.0
#include "recorder/torch/autograd_link.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <typeinfo>

#include "recorder/system/mapped_library.h"

namespace plab::recorder::autograd_link {
namespace {

// get_current_node() returns a smart pointer by value: std::shared_ptr<Node> up to 2025, then
// c10::intrusive_ptr<Node>. Both have a destructor, so both come back through a hidden first argument.
struct Returned {
  void* node;
  void* control;  // shared_ptr alone writes it
};
using GetCurrentNode = void* (*)(Returned*);
using GetNumber = uint64_t (*)();

void* const kUntouched = reinterpret_cast<void*>(uintptr_t{0x5a5a5a5a5a5a5a5a});
constexpr size_t kScannedBytes = 128;  // a node's own fields lie within its first bytes; every node is larger
constexpr size_t kLongestName = 200;
constexpr size_t kFunctionBytes = 1024;  // where a Python function's node is searched for its object
constexpr int kReleaseChecks = 8;
constexpr size_t kIntrusiveCounts = 8;  // c10::intrusive_ptr_target: vtable, then the counters
constexpr uint64_t kHasPyObject = uint64_t{1} << 63;

struct Link {
  GetNumber peek = nullptr;
  GetNumber thread = nullptr;
  GetCurrentNode current_node = nullptr;
  std::atomic<bool> shared{false};  // the consumer reads the state while a late import of torch attaches
  size_t sequence_offset = 0, thread_offset = 0;
  size_t object_head = 0;      // bytes of a Python object before its own fields; the last of them is its type
  size_t function_object = 0;  // where a node that a Python function made keeps its Python object
  // The vtable of such nodes. Set last, maybe while launches read already.
  std::atomic<const void*> function_class{nullptr};
};

constexpr uintptr_t kPythonType = 1;  // marks a node_type that is a PyTypeObject; addresses are even

Link link;  // written before `on` is set, read after
std::atomic<bool> on{false};
std::atomic<bool> can_release{false};  // the count of an intrusive_ptr is where we think
std::atomic<bool> odd_count{false};    // a reference could not be given back by what is known of the counts
std::atomic<int> release_checks{0};
std::mutex state_mutex;
std::string state_text = "torch is not imported";

std::string set_state(const std::string& text) {
  std::lock_guard lock(state_mutex);
  state_text = text;
  return text;
}

// Both counts of an intrusive_ptr_target in one word, as torch itself has them since 2.9: references in the
// low half; above them weak ones, and in the highest bit whether a Python object wraps the node.
std::atomic<uint64_t>* intrusive_counts(void* node) {
  return reinterpret_cast<std::atomic<uint64_t>*>(static_cast<char*>(node) + kIntrusiveCounts);
}

uint32_t references(uint64_t counts) { return static_cast<uint32_t>(counts); }

void* borrow(Returned* returned) noexcept {
  *returned = {nullptr, kUntouched};
  link.current_node(returned);
  return returned->node;
}

// Releases the pointer that get_current_node() returned.
//
// The destructor of a shared_ptr is the same in every version of libstdc++. The destructor of an intrusive_ptr
// belongs to torch and is inlined, so its count is decremented here. Torch does no more than that while other
// references exist. The last reference destroys the node. Since torch 2.13, the last one besides the Python object's
// own drops that object, for which torch takes the GIL. Our reference is never one of these: get_current_node()
// copies a pointer that its thread owns while the node is evaluated, so there is at least one other reference, and
// two with a Python object. If the count says otherwise, our reference is kept. That leaks one node and switches the
// link off.
void give_back(Returned* returned) noexcept {
  if (link.shared) {
    reinterpret_cast<std::shared_ptr<void>*>(returned)->~shared_ptr();
    return;
  }
  if (!can_release.load(std::memory_order_relaxed)) return;
  std::atomic<uint64_t>& counts = *intrusive_counts(returned->node);
  uint64_t now = counts.load(std::memory_order_relaxed);
  do {
    if (!may_lower(now)) {
      odd_count = true;
      on = false;
      return;
    }
  } while (!counts.compare_exchange_weak(now, now - 1, std::memory_order_acq_rel));
}

// The first backward calls show where the intrusive count is: it must grow by one with every pointer handed out.
// Until then the references are kept, which leaks those nodes: a few at most, then the link is switched off.
void prove_intrusive_count(void* node) noexcept {
  if (release_checks.fetch_add(1) >= kReleaseChecks) {
    on = false;
    return;
  }
  const uint64_t before = intrusive_counts(node)->load();
  Returned second;
  borrow(&second);
  if (second.node == node && intrusive_counts(node)->load() == before + 1 && may_lower(before + 1)) {
    can_release = true;
    give_back(&second);
  }
}

// Reads foreign memory without the risk of a fault: the kernel checks the address when a pipe is fed from it.
class SafeReader {
 public:
  SafeReader() { ok_ = pipe(ends_) == 0; }
  ~SafeReader() {
    if (!ok_) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  bool copy(uintptr_t from, void* to, size_t bytes) const {
    if (!ok_ || write(ends_[1], reinterpret_cast<const void*>(from), bytes) != static_cast<ssize_t>(bytes))
      return false;
    return ::read(ends_[0], to, bytes) == static_cast<ssize_t>(bytes);
  }

 private:
  int ends_[2];
  bool ok_;
};

// A PyTypeObject is an object with a size, then comes tp_name.
std::string python_type_name(uintptr_t type) {
  const SafeReader reader;
  uintptr_t name = 0;
  if (!reader.copy(type + link.object_head + sizeof(ssize_t), &name, sizeof name)) return "PyNode";
  std::string text;
  for (char c; text.size() < kLongestName && reader.copy(name + text.size(), &c, 1) && c;) text += c;
  return text.empty() ? "PyNode" : text;
}

struct NodeBytes {
  uint64_t words[kScannedBytes / 8];
};

// The nodes behind the Python objects, if the pointer stands `head` bytes into each object.
bool fetch_nodes(const SafeReader& reader, const std::vector<Sample>& samples, size_t head,
                 std::vector<NodeBytes>* nodes) {
  nodes->clear();
  for (const Sample& sample : samples) {
    uintptr_t node = 0;
    NodeBytes bytes;
    if (!reader.copy(sample.object + head, &node, sizeof node) || node % 8 != 0) return false;
    if (!reader.copy(node, &bytes, sizeof bytes)) return false;
    nodes->push_back(bytes);
  }
  return true;
}

// Word indices at which every node holds what Python says.
std::vector<size_t> matches(const std::vector<NodeBytes>& nodes, const std::vector<Sample>& samples,
                            uint64_t Sample::*expected) {
  std::vector<size_t> found;
  for (size_t word = 1; word < kScannedBytes / 8; ++word) {
    bool all = true;
    for (size_t i = 0; i < nodes.size() && all; ++i) all = nodes[i].words[word] == samples[i].*expected;
    if (all) found.push_back(word);
  }
  return found;
}

}  // namespace

std::string attach() {
  on = false;
  const std::string path = find_mapped_library("libtorch_cpu.so");
  if (path.empty()) return set_state("torch is not imported");
  void* library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
  if (!library) return set_state("libtorch_cpu.so cannot be opened");
  const auto find = [library](const char* name) { return dlsym(library, name); };
  link.peek = reinterpret_cast<GetNumber>(find("_ZN2at15sequence_number4peekEv"));
  link.thread = reinterpret_cast<GetNumber>(find("_ZN2at14RecordFunction15currentThreadIdEv"));
  link.current_node = reinterpret_cast<GetCurrentNode>(find("_ZN5torch8autograd16get_current_nodeEv"));
  dlclose(library);  // torch holds it
  if (!link.peek || !link.thread || !link.current_node) {
    return set_state(
        "this torch does not export sequence_number::peek, currentThreadId and get_current_node");
  }
  Returned returned;
  borrow(&returned);
  link.shared = returned.control != kUntouched;
  if (returned.node) give_back(&returned);
  set_state("torch's autograd nodes were not examined before the recording ended");
  return "";
}

uint64_t current_thread() { return link.thread ? link.thread() : 0; }

std::string calibrate(const std::vector<Sample>& samples) {
  if (!link.current_node) return set_state("torch is not imported");
  std::set<uint64_t> sequences, threads;
  for (const Sample& sample : samples) {
    sequences.insert(sample.sequence);
    threads.insert(sample.thread);
  }
  // Fewer, and some other field of the nodes could look the same.
  if (sequences.size() < 4 || threads.size() < 2) {
    return set_state("calibration needs four autograd nodes with different numbers, of two threads");
  }
  const SafeReader reader;
  std::vector<NodeBytes> nodes;
  // A Python object starts with its count and type; free-threaded builds have a longer head.
  for (const size_t head : {16, 24, 32, 40}) {
    if (!fetch_nodes(reader, samples, head, &nodes)) continue;
    const auto sequence = matches(nodes, samples, &Sample::sequence);
    const auto thread = matches(nodes, samples, &Sample::thread);
    if (sequence.size() != 1 || thread.size() != 1) continue;
    link.sequence_offset = sequence[0] * 8;
    link.thread_offset = thread[0] * 8;
    link.object_head = head;
    link.function_class = nullptr;
    release_checks = 0;
    odd_count = false;
    on = true;
    set_state("on");
    return "";
  }
  return set_state(
      "this torch keeps an autograd node's number or thread where calibration could not find it");
}

bool calibrate_functions(const Sample& user, const Sample& function) {
  if (!on) return false;
  const SafeReader reader;
  uintptr_t user_node = 0;
  NodeBytes words;
  if (!reader.copy(user.object + link.object_head, &user_node, sizeof user_node)) return false;
  if (!reader.copy(user_node, &words, sizeof words)) return false;
  // The node keeps its inputs in a vector of edges, which start with the pointer to the input's node.
  for (const uint64_t word : words.words) {
    uintptr_t candidate = 0;
    NodeBytes node;
    if (!reader.copy(word, &candidate, sizeof candidate) || candidate % 8 != 0) continue;
    if (!reader.copy(candidate, &node, sizeof node)) continue;
    if (node.words[link.sequence_offset / 8] != function.sequence) continue;
    if (node.words[link.thread_offset / 8] != function.thread) continue;
    for (size_t offset = 8; offset < kFunctionBytes; offset += 8) {
      uintptr_t object = 0;
      if (!reader.copy(candidate + offset, &object, sizeof object) || object != function.object) continue;
      link.function_object = offset;
      link.function_class.store(reinterpret_cast<const void*>(node.words[0]), std::memory_order_release);
      return true;
    }
  }
  return false;
}

[[gnu::hot]] bool read(Reading* reading) noexcept {
  if (!on.load(std::memory_order_acquire)) return false;
  reading->peek_seq = link.peek();
  if (reading->self_thread == 0) reading->self_thread = link.thread();
  Returned returned;
  void* node = borrow(&returned);
  reading->backward = node != nullptr;
  if (!node) return true;  // an empty smart pointer owns nothing
  const char* bytes = static_cast<const char*>(node);
  std::memcpy(&reading->node_type, bytes, sizeof(void*));
  std::memcpy(&reading->node_seq, bytes + link.sequence_offset, sizeof(uint64_t));
  std::memcpy(&reading->node_thread, bytes + link.thread_offset, sizeof(uint64_t));
  if (reading->node_type == link.function_class.load(std::memory_order_acquire)) {
    const char* object;
    uintptr_t type;
    std::memcpy(&object, bytes + link.function_object, sizeof object);
    if (object) {
      std::memcpy(&type, object + link.object_head - sizeof type, sizeof type);
      reading->node_type = reinterpret_cast<const void*>(type | kPythonType);
    }
  }
  if (!link.shared && !can_release.load(std::memory_order_relaxed)) prove_intrusive_count(node);
  give_back(&returned);
  return true;
}

bool may_lower(uint64_t counts) noexcept { return references(counts) > (counts & kHasPyObject ? 2u : 1u); }

std::string state() {
  if (odd_count) return "this torch counts references to an autograd node in a way that is not known here";
  if (!link.shared && !can_release && release_checks > kReleaseChecks) {
    return "this torch counts references to an autograd node where we could not find it";
  }
  std::lock_guard lock(state_mutex);
  return state_text;
}

void detach() noexcept { on = false; }

void give_up(const std::string& reason) {
  on = false;
  set_state(reason);
}

std::string node_name(const void* node_type) {
  if (!node_type) return "";
  if (const auto address = reinterpret_cast<uintptr_t>(node_type); address & kPythonType) {
    return python_type_name(address & ~kPythonType);
  }
  // Itanium C++ ABI: the word before the first virtual function points to the type_info.
  const auto* type = static_cast<const std::type_info* const*>(node_type)[-1];
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type->name(), nullptr, nullptr, &status),
                                              std::free);
  std::string name = status == 0 ? text.get() : type->name();
  const size_t colon = name.rfind("::");
  return colon == std::string::npos ? name : name.substr(colon + 2);
}

}  // namespace plab::recorder::autograd_link
