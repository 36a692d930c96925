// SPDX-License-Identifier: Apache-2.0
// The library's two entry points: pl_init finds torch and registers every op, pl_build_info says what was built.
#include <link.h>

#include <mutex>
#include <string>

#include "ops/registry.h"
#include "torch_abi/abi.h"
#include "torch_abi/library.h"

namespace plab::ops {
namespace {

// The path of another loaded file of the same name, or "".
std::string other_copy(const std::string& own) {
  struct Search {
    const std::string& own;
    std::string name, found;
  } search{own, own.substr(own.rfind('/') + 1), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* opaque) {
        auto& s = *static_cast<Search*>(opaque);
        const std::string path = info->dlpi_name;
        if (path != s.own && path.substr(path.rfind('/') + 1) == s.name) s.found = path;
        return 0;
      },
      &search);
  return search.found;
}

std::string register_all() {
#ifdef PLAB_HAS_CUDA
  const bool cuda = torch_abi::torch_has_cuda();
#else
  const bool cuda = false;
#endif
  const std::string own = torch_abi::file_of(reinterpret_cast<void*>(&register_all));
  const std::string error = torch_abi::register_ops("profiling_lab", op_groups(), cuda, own.c_str());
  if (error.empty()) return "";
  const std::string other = other_copy(own);
  if (other.empty()) return error;
  return "two copies of profiling_lab are loaded: " + other + " has registered the ops, so " + own +
         " cannot.";
}

// Both entry points may be called by several threads and several times; the ops are registered once.
std::string initialise(const char* torch_c_path) noexcept {
  static std::mutex mutex;
  static bool done = false;
  try {
    const std::lock_guard lock(mutex);
    if (done) return torch_abi::other_than_bound(torch_c_path);
    if (torch_c_path == nullptr && !torch_abi::load_from_process()) return "";
    std::string error = torch_c_path != nullptr ? torch_abi::load(torch_c_path) : "";
    if (error.empty()) error = register_all();
    done = error.empty();
    return error;
  } catch (...) {
    return "profiling_lab.ops could not be registered: out of memory";
  }
}

// For torch.ops.load_library() and for C++ programs: where libtorch is already loaded, loading us is enough. Where it
// is not, or twice, the ops wait for pl_init, which knows the path and reports anything wrong.
[[gnu::constructor]] void on_load() { initialise(nullptr); }

}  // namespace
}  // namespace plab::ops

extern "C" {

// Registers the ops with the torch whose torch._C is at `torch_c_path`. Returns "" or one sentence with the reason;
// the text lives until the thread's next call.
[[gnu::visibility("default")]] const char* pl_init(const char* torch_c_path) {
  thread_local std::string error;
  error = plab::ops::initialise(torch_c_path);
  return error.c_str();
}

// What this binary is, as JSON.
[[gnu::visibility("default")]] const char* pl_build_info() { return PLAB_BUILD_INFO; }
}
