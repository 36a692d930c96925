// SPDX-License-Identifier: Apache-2.0
// A reference to a torch tensor, its properties, and the few ways an op makes new ones.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "torch_abi/abi.h"

namespace plab::torch_abi {

enum class Dtype {
  kFloat32,
  kFloat64,
  kBFloat16,
  kFloat16,
  kUInt8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kComplex64,
  kComplex128,
  kOther
};

struct Device {
  int32_t type;
  int32_t index;
  bool is_cpu() const { return type == torch.aoti_torch_device_type_cpu(); }
  bool is_cuda() const { return type == torch.aoti_torch_device_type_cuda(); }
  bool operator==(const Device&) const = default;
};

// Owns one reference. Moving is free; a second reference is made only on request, by share().
class Tensor {
 public:
  explicit Tensor(TensorHandle owned) : handle_(owned) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) torch.aoti_torch_delete_tensor_object(handle_);
  }

  Tensor share() const;
  TensorHandle handle() const { return handle_; }
  TensorHandle release() { return std::exchange(handle_, nullptr); }

  int64_t dim() const;
  int64_t numel() const;
  std::span<const int64_t> sizes() const;
  std::span<const int64_t> strides() const;
  int64_t size(int64_t dim) const;  // negative counts from the last dimension
  Dtype dtype() const;
  Device device() const;
  bool is_contiguous() const;

  const void* data() const;
  void* mutable_data();
  template <class T>
  const T* data() const {
    return static_cast<const T*>(data());
  }
  template <class T>
  T* mutable_data() {
    return static_cast<T*>(mutable_data());
  }

 private:
  TensorHandle handle_;
};

// A contiguous tensor with undefined contents, from torch's own allocator (so CUDA graphs and memory pools
// work).
Tensor empty(std::span<const int64_t> sizes, Dtype dtype, Device device);
inline Tensor empty_like(const Tensor& like) { return empty(like.sizes(), like.dtype(), like.device()); }

// The same memory with other sizes and strides (in elements), starting `offset` elements after the tensor's
// start.
Tensor view(const Tensor& tensor, std::span<const int64_t> sizes, std::span<const int64_t> strides,
            int64_t offset = 0);

int32_t to_torch(Dtype dtype);
Dtype dtype_from_torch(int32_t dtype);
const char* name(Dtype dtype);                     // "float32"
std::string name(Device device);                   // "cuda:0"
std::string text(std::span<const int64_t> sizes);  // "[3, 4]"

}  // namespace plab::torch_abi
