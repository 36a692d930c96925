// SPDX-License-Identifier: Apache-2.0
#include "torch_abi/abi.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace plab::torch_abi {

Functions torch;

namespace {

constexpr const char* kNeeds = "profiling_lab.ops needs PyTorch 2.10 or newer";

std::string version_text(uint64_t packed) {
  return std::to_string(packed >> 56) + "." + std::to_string((packed >> 48) & 0xff) + "." +
         std::to_string((packed >> 40) & 0xff);
}

// Only libraries that are already loaded are used: a second libtorch in the process must never be loaded.
class LoadedLibraries {
 public:
  bool add(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (handle != nullptr) handles_.push_back(handle);
    return handle != nullptr;
  }

  void* find(const char* name) const {
    for (void* handle : handles_) {
      if (void* symbol = dlsym(handle, name)) return symbol;
    }
    return nullptr;
  }

 private:
  std::vector<void*> handles_;  // never closed: the functions must stay valid for the life of the process
};

std::string fill_table(const LoadedLibraries& libraries) {
  Functions found;
  const char* missing = nullptr;
#define PLAB_TORCH_FIND(result, name, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(libraries.find(#name));
#define PLAB_TORCH_NEED(result, name, parameters) \
  PLAB_TORCH_FIND(result, name, parameters)       \
  if (found.name == nullptr && missing == nullptr) missing = #name;
  PLAB_TORCH_REQUIRED(PLAB_TORCH_NEED)
  PLAB_TORCH_OPTIONAL(PLAB_TORCH_FIND)
#undef PLAB_TORCH_NEED
#undef PLAB_TORCH_FIND
  if (found.aoti_torch_abi_version != nullptr) {
    const uint64_t version = found.aoti_torch_abi_version();
    if (version < kTorchFloor) return std::string(kNeeds) + "; found torch " + version_text(version) + ".";
  }
  if (missing != nullptr) return std::string(kNeeds) + "; the loaded torch lacks " + missing + ".";
  torch = found;
  return "";
}

}  // namespace

std::string file_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fname : "";
}

std::string load(const char* torch_c_path) {
  LoadedLibraries libraries;
  if (!libraries.add(torch_c_path)) {
    return std::string(kNeeds) + "; " + torch_c_path + " is not loaded in this process.";
  }
  // Where libtorch_cuda is not a dependency of torch._C it is its neighbour; by its name alone another copy could
  // be found.
  if (void* const version = libraries.find("aoti_torch_abi_version")) {
    const std::filesystem::path cpu = file_of(version);
    libraries.add((cpu.parent_path() / "libtorch_cuda.so").c_str());
  }
  return fill_table(libraries);
}

std::string other_than_bound(const char* torch_c_path) {
  LoadedLibraries libraries;
  libraries.add(torch_c_path);
  void* const version = libraries.find("aoti_torch_abi_version");
  auto* const bound = reinterpret_cast<void*>(torch.aoti_torch_abi_version);
  if (version == nullptr || version == bound) return "";
  return "two copies of libtorch are loaded: the ops were registered with " + file_of(bound) +
         ", but torch runs on " + file_of(version) + ".";
}

bool load_from_process() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const char* name = std::strrchr(info->dlpi_name, '/');
        name = name != nullptr ? name + 1 : info->dlpi_name;
        if (std::strncmp(name, "libtorch_cpu.so", 15) == 0 ||
            std::strncmp(name, "libtorch_cuda.so", 16) == 0) {
          static_cast<std::vector<std::string>*>(out)->push_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  LoadedLibraries libraries;
  int copies = 0;
  for (const std::string& path : paths) {
    libraries.add(path.c_str());
    if (path.find("libtorch_cpu.so") != std::string::npos) ++copies;
  }
  return copies == 1 && fill_table(libraries).empty();
}

void throw_torch_error(const char* function) {
  if (torch.torch_exception_get_what_without_backtrace != nullptr) {
    const char* what = torch.torch_exception_get_what_without_backtrace();
    if (what != nullptr && *what != '\0') throw std::runtime_error(what);
  }
  throw std::runtime_error(std::string("libtorch call failed: ") + function);
}

}  // namespace plab::torch_abi
