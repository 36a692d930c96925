// SPDX-License-Identifier: Apache-2.0
#include "torch_abi/library.h"

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plab::torch_abi {

namespace {

// Registers every op twice: by its name, for which Python registers autograd, autocast and so on, and as the
// overload "plain", the kernel alone, for calls in which none of these is active.
constexpr const char* kOverloads[] = {"", ".plain"};

// Deleting the handle undoes the registrations, which a failed attempt must do.
class Library {
 public:
  Library(const char* ns, const char* origin) {
    PLAB_TORCH(aoti_torch_library_init_def, ns, origin, 0, &handle_);
  }
  Library(const char* ns, const char* key, const char* origin) {
    PLAB_TORCH(aoti_torch_library_init_impl, ns, key, origin, 0, &handle_);
  }
  Library(Library&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Library& operator=(Library&&) = delete;
  ~Library() {
    if (handle_ != nullptr) torch.aoti_torch_delete_library_object(handle_);
  }

  void define(const OpDef& op, const char* overload) {
    PLAB_TORCH(aoti_torch_library_def, handle_, (name(op, overload) + parameters(op)).c_str());
  }
  void implement(const OpDef& op, const char* overload) {
    PLAB_TORCH(torch_library_impl, handle_, name(op, overload).c_str(), op.kernel, kTorchFloor);
  }
  void keep() { handle_ = nullptr; }

 private:
  static std::string name(const OpDef& op, const char* overload) {
    const std::string_view schema = op.schema;
    return std::string(schema.substr(0, schema.find('('))) + overload;
  }
  static std::string parameters(const OpDef& op) {
    const std::string_view schema = op.schema;
    return std::string(schema.substr(schema.find('(')));
  }

  LibraryHandle handle_ = nullptr;
};

}  // namespace

std::string register_ops(const char* ns, std::span<const std::span<const OpDef>> groups, bool cuda,
                         const char* origin) {
  try {
    std::vector<Library> libraries;
    libraries.emplace_back(ns, origin);
    libraries.emplace_back(ns, "CPU", origin);
    if (cuda) libraries.emplace_back(ns, "CUDA", origin);
    for (const auto& group : groups) {
      for (const OpDef& op : group) {
        for (const char* overload : kOverloads) {
          libraries[0].define(op, overload);
          for (size_t i = 1; i < libraries.size(); ++i) libraries[i].implement(op, overload);
        }
      }
    }
    for (Library& library : libraries) library.keep();
    return "";
  } catch (const std::exception& error) {
    return std::string("torch refused the ops of namespace ") + ns + ": " + error.what();
  }
}

}  // namespace plab::torch_abi
