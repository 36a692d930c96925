// SPDX-License-Identifier: Apache-2.0
// LibTorch's stable C functions, declared by us and found at run time in the torch that is already loaded.
//
// Without torch's headers, building needs no torch at all, and one binary works with every torch since 2.10, CPU
// and CUDA builds alike. conformance.cpp compares each declaration with torch's own header where those headers
// exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace plab::torch_abi {

// What libtorch hands out pointers to; only libtorch knows what is inside.
struct TensorOpaque;
struct LibraryOpaque;
struct ListOpaque;
struct StringOpaque;
struct DeviceGuardOpaque;
struct StreamGuardOpaque;
using TensorHandle = TensorOpaque*;
using LibraryHandle = LibraryOpaque*;
using ListHandle = ListOpaque*;
using StringHandle = StringOpaque*;
using DeviceGuardHandle = DeviceGuardOpaque*;
using StreamGuardHandle = StreamGuardOpaque*;

using ErrorCode = int32_t;  // 0 is success
// One argument or result of a boxed call: a number, or a pointer to what it owns.
using StackValue = uint64_t;
using BoxedKernel = void (*)(StackValue* stack, uint64_t arguments, uint64_t results);
using RangeBody = void (*)(int64_t begin, int64_t end, void* context);

// Packed as torch packs its versions: major, minor, patch, each one byte from the top.
constexpr uint64_t kTorchFloor = (2ull << 56) | (10ull << 48);

// The formatter would read the stars in these tables as multiplications.
// clang-format off

// X(return type, name, parameters). These exist in torch 2.10 and later: without one of them nothing is
// registered.
#define PLAB_TORCH_REQUIRED(X)                                                                        \
  X(uint64_t, aoti_torch_abi_version, ())                                                             \
  X(int32_t, aoti_torch_device_type_cpu, ())                                                          \
  X(int32_t, aoti_torch_device_type_cuda, ())                                                         \
  X(int32_t, aoti_torch_memory_format_contiguous_format, ())                                          \
  X(int32_t, aoti_torch_dtype_float32, ())                                                            \
  X(int32_t, aoti_torch_dtype_float64, ())                                                            \
  X(int32_t, aoti_torch_dtype_bfloat16, ())                                                           \
  X(int32_t, aoti_torch_dtype_float16, ())                                                            \
  X(int32_t, aoti_torch_dtype_uint8, ())                                                              \
  X(int32_t, aoti_torch_dtype_int8, ())                                                               \
  X(int32_t, aoti_torch_dtype_int16, ())                                                              \
  X(int32_t, aoti_torch_dtype_int32, ())                                                              \
  X(int32_t, aoti_torch_dtype_int64, ())                                                              \
  X(int32_t, aoti_torch_dtype_bool, ())                                                               \
  X(int32_t, aoti_torch_dtype_complex64, ())                                                          \
  X(int32_t, aoti_torch_dtype_complex128, ())                                                         \
  X(ErrorCode, aoti_torch_new_tensor_handle, (TensorHandle tensor, TensorHandle* result))             \
  X(ErrorCode, aoti_torch_delete_tensor_object, (TensorHandle tensor))                                \
  X(ErrorCode, aoti_torch_get_dim, (TensorHandle tensor, int64_t* result))                            \
  X(ErrorCode, aoti_torch_get_numel, (TensorHandle tensor, int64_t* result))                          \
  X(ErrorCode, aoti_torch_get_sizes, (TensorHandle tensor, int64_t** borrowed))                       \
  X(ErrorCode, aoti_torch_get_strides, (TensorHandle tensor, int64_t** borrowed))                     \
  X(ErrorCode, aoti_torch_get_dtype, (TensorHandle tensor, int32_t* result))                          \
  X(ErrorCode, aoti_torch_get_device_type, (TensorHandle tensor, int32_t* result))                    \
  X(ErrorCode, aoti_torch_get_device_index, (TensorHandle tensor, int32_t* result))                   \
  X(ErrorCode, aoti_torch_is_contiguous, (TensorHandle tensor, bool* result))                         \
  X(ErrorCode, torch_get_const_data_ptr, (TensorHandle tensor, const void** borrowed))                \
  X(ErrorCode, torch_get_mutable_data_ptr, (TensorHandle tensor, void** borrowed))                    \
  X(ErrorCode, aoti_torch_empty_strided,                                                              \
    (int64_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,  \
     int32_t device_index, TensorHandle* result))                                                     \
  X(ErrorCode, aoti_torch__reinterpret_tensor,                                                        \
    (TensorHandle tensor, int64_t dims, const int64_t* sizes, const int64_t* strides, int64_t offset, \
     TensorHandle* result))                                                                           \
  X(ErrorCode, torch_call_dispatcher,                                                                 \
    (const char* op, const char* overload, StackValue* stack, uint64_t build_version))                \
  X(ErrorCode, torch_parallel_for,                                                                    \
    (int64_t begin, int64_t end, int64_t grain, RangeBody body, void* context))                       \
  X(ErrorCode, aoti_torch_create_device_guard, (int32_t device_index, DeviceGuardHandle* result))     \
  X(ErrorCode, aoti_torch_delete_device_guard, (DeviceGuardHandle guard))                             \
  X(ErrorCode, torch_new_list_reserve_size, (size_t size, ListHandle* result))                        \
  X(ErrorCode, torch_list_size, (ListHandle list, size_t* result))                                    \
  X(ErrorCode, torch_list_get_item, (ListHandle list, size_t index, StackValue* result))              \
  X(ErrorCode, torch_list_push_back, (ListHandle list, StackValue element))                           \
  X(ErrorCode, torch_delete_list, (ListHandle list))                                                  \
  X(ErrorCode, torch_string_length, (StringHandle string, size_t* result))                            \
  X(ErrorCode, torch_string_c_str, (StringHandle string, const char** borrowed))                      \
  X(ErrorCode, torch_delete_string, (StringHandle string))                                            \
  X(ErrorCode, aoti_torch_library_init_def,                                                           \
    (const char* ns, const char* file, uint32_t line, LibraryHandle* result))                         \
  X(ErrorCode, aoti_torch_library_init_impl,                                                          \
    (const char* ns, const char* key, const char* file, uint32_t line, LibraryHandle* result))        \
  X(ErrorCode, aoti_torch_library_def, (LibraryHandle library, const char* schema))                   \
  X(ErrorCode, torch_library_impl,                                                                    \
    (LibraryHandle library, const char* name, BoxedKernel kernel, uint64_t build_version))            \
  X(ErrorCode, aoti_torch_delete_library_object, (LibraryHandle library))

// These may be null: the first three exist only in CUDA builds of torch, the others since torch 2.13.
#define PLAB_TORCH_OPTIONAL(X)                                                            \
  X(ErrorCode, aoti_torch_get_current_cuda_stream, (int32_t device_index, void** result)) \
  X(ErrorCode, aoti_torch_create_cuda_stream_guard,                                       \
    (void* stream, int32_t device_index, StreamGuardHandle* result))                      \
  X(ErrorCode, aoti_torch_delete_cuda_stream_guard, (StreamGuardHandle guard))            \
  X(const char*, torch_exception_get_what_without_backtrace, ())                          \
  X(ErrorCode, torch_delete_stable_ivalue, (StackValue* value))

// clang-format on

#define PLAB_TORCH_POINTER(result, name, parameters) result(*name) parameters = nullptr;
struct Functions {
  PLAB_TORCH_REQUIRED(PLAB_TORCH_POINTER)
  PLAB_TORCH_OPTIONAL(PLAB_TORCH_POINTER)
};
#undef PLAB_TORCH_POINTER

// The table. Valid once load() has returned "", or load_from_process() true.
extern Functions torch;

// Fills the table from a library of the process, usually torch._C, and its dependencies. Returns "" or the reason
// for a failure.
std::string load(const char* torch_c_path);

// The same without a path: looks for a loaded libtorch, of which there must be one. Returns whether the table is
// filled.
bool load_from_process();

// The path of the library that a function is in.
std::string file_of(void* function);

// With the table filled: "", or a sentence if torch._C at that path uses another libtorch than the table's.
std::string other_than_bound(const char* torch_c_path);

// True if the loaded torch has streams, that is, if it is a CUDA build.
inline bool torch_has_cuda() { return torch.aoti_torch_get_current_cuda_stream != nullptr; }

// Throws std::runtime_error with libtorch's own text (torch 2.13 and later; before that the text is lost in
// libtorch).
[[noreturn]] void throw_torch_error(const char* function);

inline void check_torch(ErrorCode code, const char* function) {
  if (code != 0) [[unlikely]]
    throw_torch_error(function);
}

}  // namespace plab::torch_abi

// Calls a function of the table and turns its error code into an exception.
#define PLAB_TORCH(name, ...) \
  ::plab::torch_abi::check_torch(::plab::torch_abi::torch.name(__VA_ARGS__), #name)
