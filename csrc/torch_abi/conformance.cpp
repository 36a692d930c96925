// SPDX-License-Identifier: Apache-2.0
// Compiles only if every function that abi.h declares has the signature that torch's own headers give it.
// Built where PROFILING_LAB_TORCH_INCLUDE names those headers; nothing of it is linked anywhere.
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <type_traits>

#include "torch_abi/abi.h"

namespace {

namespace ours = plab::torch_abi;

// Handles are opaque on both sides; only their names differ.
template <class T>
struct Map {
  using type = T;
};
template <class T>
struct Map<T*> {
  using type = typename Map<T>::type*;
};
template <class Result, class... Parameters>
struct Map<Result(Parameters...)> {
  using type = typename Map<Result>::type(typename Map<Parameters>::type...);
};
template <>
struct Map<ours::TensorOpaque> {
  using type = AtenTensorOpaque;
};
template <>
struct Map<ours::LibraryOpaque> {
  using type = TorchLibraryOpaque;
};
template <>
struct Map<ours::ListOpaque> {
  using type = StableListOpaque;
};
template <>
struct Map<ours::StringOpaque> {
  using type = ::StringOpaque;
};
template <>
struct Map<ours::DeviceGuardOpaque> {
  using type = ::DeviceGuardOpaque;
};
template <>
struct Map<ours::StreamGuardOpaque> {
  using type = CUDAStreamGuardOpaque;
};

#define PLAB_SAME(result, name, parameters)                                                                \
  static_assert(                                                                                           \
      std::is_same_v<Map<std::remove_pointer_t<decltype(ours::Functions::name)>>::type, decltype(::name)>, \
      #name " differs from torch's own declaration");
PLAB_TORCH_REQUIRED(PLAB_SAME)
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
PLAB_TORCH_OPTIONAL(PLAB_SAME)
#endif

}  // namespace
