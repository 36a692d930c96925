// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "recorder/system/mapped_library.h"

namespace plab::recorder {
namespace {

constexpr char kNoDriver[] = "no CUDA driver was found (or it cannot be initialised)";
constexpr char kAnyVersion[] = "PROFILING_LAB_ANY_CUPTI";

bool any_version_goes() {
  const char* const value = std::getenv(kAnyVersion);
  return value && *value && std::strcmp(value, "0") != 0;
}

// Returns "" or why this file cannot be used.
std::string bind(const std::string& path, int extra_flags, bool is_nvidias, cupti::Functions* functions) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | extra_flags);
  if (!library) {
    const char* error = dlerror();
    return error ? error : path + " cannot be loaded";
  }
  cupti::Functions found;
  const char* missing = nullptr;
#define PLAB_BIND(name, parameters) \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(library, "cupti" #name));
#define PLAB_BIND_REQUIRED(name, parameters) \
  PLAB_BIND(name, parameters)                \
  if (!found.name) missing = "cupti" #name;
  PLAB_CUPTI_REQUIRED(PLAB_BIND_REQUIRED)
  PLAB_CUPTI_OPTIONAL(PLAB_BIND)
#undef PLAB_BIND_REQUIRED
#undef PLAB_BIND
  if (missing) return path + " has no " + missing;
  // CUPTI 13.2 without a driver calls itself until the stack is full, in cuptiGetVersion already.
  if (is_nvidias && !dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL)) return kNoDriver;
  if (found.GetVersion(&found.version) != cupti::kSuccess) return path + " does not tell its version";
  if (const uint32_t major = found.version / cupti::kMajor;
      major > cupti::kNewestMajor && !any_version_goes()) {
    return path + " is CUPTI of CUDA " + std::to_string(major) + ", and its records are known up to CUDA " +
           std::to_string(cupti::kNewestMajor) + ": " + kAnyVersion + "=1 tries it all the same";
  }
  found.path = path;
  *functions = found;
  return "";
}

}  // namespace

std::string cupti::Functions::describe(cupti::Result result) const {
  const char* text = nullptr;
  if (GetResultString) GetResultString(result, &text);
  return std::string(text ? text : "unknown error") + " (" + std::to_string(result) + ")";
}

std::string load_cupti(const std::string& override_path, const std::vector<std::string>& candidates,
                       cupti::Functions* functions) {
  if (!override_path.empty()) {
    const std::string why = bind(override_path, 0, false, functions);
    return why.empty() ? "" : "PROFILING_LAB_CUPTI cannot be used: " + why;
  }
  if (const std::string mapped = find_mapped_library("libcupti.so"); !mapped.empty()) {
    return bind(mapped, RTLD_NOLOAD, true, functions);
  }
  std::string reasons;
  for (const std::string& path : candidates) {
    const std::string why = bind(path, 0, true, functions);
    if (why.empty() || why == kNoDriver) return why;
    reasons += (reasons.empty() ? "" : "; ") + why;
  }
  return "libcupti was not found (pip's CUDA build of torch brings it, so does the CUDA toolkit)" +
         (reasons.empty() ? "" : ": " + reasons);
}

bool cuda_context_exists() noexcept {
  // Declared here, as CUPTI's functions are: building needs no CUDA header.
  using DeviceGetCount = int (*)(int* count);
  using PrimaryContextState = int (*)(int device, unsigned* flags, int* active);

  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto device_count = reinterpret_cast<DeviceGetCount>(dlsym(driver, "cuDeviceGetCount"));
  const auto context_state =
      reinterpret_cast<PrimaryContextState>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  bool found = false;
  int devices = 0;
  // Before cuInit both calls fail, and no context can exist.
  if (device_count != nullptr && context_state != nullptr && device_count(&devices) == 0) {
    for (int device = 0; device < devices && !found; ++device) {
      unsigned flags = 0;
      int active = 0;
      found = context_state(device, &flags, &active) == 0 && active != 0;
    }
  }
  dlclose(driver);
  return found;
}

}  // namespace plab::recorder
