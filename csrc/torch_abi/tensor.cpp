// SPDX-License-Identifier: Apache-2.0
#include "torch_abi/tensor.h"

#include <array>
#include <stdexcept>
#include <vector>

namespace plab::torch_abi {

namespace {

struct DtypeRow {
  Dtype dtype;
  const char* name;
  int32_t value;  // torch's own number
};

// Queried once: torch's stable ABI has the functions, not the numbers.
const std::array<DtypeRow, 12>& dtype_rows() {
  static const std::array<DtypeRow, 12> rows = {{
      {Dtype::kFloat32, "float32", torch.aoti_torch_dtype_float32()},
      {Dtype::kFloat64, "float64", torch.aoti_torch_dtype_float64()},
      {Dtype::kBFloat16, "bfloat16", torch.aoti_torch_dtype_bfloat16()},
      {Dtype::kFloat16, "float16", torch.aoti_torch_dtype_float16()},
      {Dtype::kUInt8, "uint8", torch.aoti_torch_dtype_uint8()},
      {Dtype::kInt8, "int8", torch.aoti_torch_dtype_int8()},
      {Dtype::kInt16, "int16", torch.aoti_torch_dtype_int16()},
      {Dtype::kInt32, "int32", torch.aoti_torch_dtype_int32()},
      {Dtype::kInt64, "int64", torch.aoti_torch_dtype_int64()},
      {Dtype::kBool, "bool", torch.aoti_torch_dtype_bool()},
      {Dtype::kComplex64, "complex64", torch.aoti_torch_dtype_complex64()},
      {Dtype::kComplex128, "complex128", torch.aoti_torch_dtype_complex128()},
  }};
  return rows;
}

}  // namespace

Tensor Tensor::share() const {
  TensorHandle result;
  PLAB_TORCH(aoti_torch_new_tensor_handle, handle_, &result);
  return Tensor(result);
}

int64_t Tensor::dim() const {
  int64_t result;
  PLAB_TORCH(aoti_torch_get_dim, handle_, &result);
  return result;
}

int64_t Tensor::numel() const {
  int64_t result;
  PLAB_TORCH(aoti_torch_get_numel, handle_, &result);
  return result;
}

std::span<const int64_t> Tensor::sizes() const {
  int64_t* borrowed;
  PLAB_TORCH(aoti_torch_get_sizes, handle_, &borrowed);
  return {borrowed, static_cast<size_t>(dim())};
}

std::span<const int64_t> Tensor::strides() const {
  int64_t* borrowed;
  PLAB_TORCH(aoti_torch_get_strides, handle_, &borrowed);
  return {borrowed, static_cast<size_t>(dim())};
}

int64_t Tensor::size(int64_t dim) const {
  const auto all = sizes();
  const int64_t index = dim < 0 ? dim + static_cast<int64_t>(all.size()) : dim;
  if (index < 0 || index >= static_cast<int64_t>(all.size())) {
    throw std::out_of_range("dimension " + std::to_string(dim) + " of a tensor of shape " + text(all));
  }
  return all[index];
}

Dtype Tensor::dtype() const {
  int32_t result;
  PLAB_TORCH(aoti_torch_get_dtype, handle_, &result);
  return dtype_from_torch(result);
}

Device Tensor::device() const {
  Device result;
  PLAB_TORCH(aoti_torch_get_device_type, handle_, &result.type);
  PLAB_TORCH(aoti_torch_get_device_index, handle_, &result.index);
  return result;
}

bool Tensor::is_contiguous() const {
  bool result;
  PLAB_TORCH(aoti_torch_is_contiguous, handle_, &result);
  return result;
}

const void* Tensor::data() const {
  const void* borrowed;
  PLAB_TORCH(torch_get_const_data_ptr, handle_, &borrowed);
  return borrowed;
}

void* Tensor::mutable_data() {
  void* borrowed;
  PLAB_TORCH(torch_get_mutable_data_ptr, handle_, &borrowed);
  return borrowed;
}

Tensor empty(std::span<const int64_t> sizes, Dtype dtype, Device device) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
  }
  TensorHandle result;
  const ErrorCode code =
      torch.aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                     to_torch(dtype), device.type, device.index, &result);
  if (code != 0) [[unlikely]] {
    // Python makes a torch.OutOfMemoryError of this text; before torch 2.13 libtorch does not say what happened.
    if (device.is_cuda() && torch.torch_exception_get_what_without_backtrace == nullptr) {
      throw std::runtime_error("CUDA out of memory: no " + std::string(name(dtype)) + " tensor of shape " +
                               text(sizes) + " could be allocated on " + name(device));
    }
    throw_torch_error("aoti_torch_empty_strided");
  }
  return Tensor(result);
}

Tensor view(const Tensor& tensor, std::span<const int64_t> sizes, std::span<const int64_t> strides,
            int64_t offset) {
  TensorHandle result;
  PLAB_TORCH(aoti_torch__reinterpret_tensor, tensor.handle(), static_cast<int64_t>(sizes.size()),
             sizes.data(), strides.data(), offset, &result);
  return Tensor(result);
}

int32_t to_torch(Dtype dtype) {
  for (const DtypeRow& row : dtype_rows()) {
    if (row.dtype == dtype) return row.value;
  }
  throw std::invalid_argument("no torch dtype stands behind this one");
}

Dtype dtype_from_torch(int32_t dtype) {
  for (const DtypeRow& row : dtype_rows()) {
    if (row.value == dtype) return row.dtype;
  }
  return Dtype::kOther;
}

const char* name(Dtype dtype) {
  for (const DtypeRow& row : dtype_rows()) {
    if (row.dtype == dtype) return row.name;
  }
  return "another dtype";
}

std::string name(Device device) {
  if (device.is_cpu()) return "cpu";
  if (device.is_cuda()) return "cuda:" + std::to_string(device.index);
  return "another kind of device";
}

std::string text(std::span<const int64_t> sizes) {
  std::string result = "[";
  for (size_t i = 0; i < sizes.size(); ++i) result += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return result + "]";
}

}  // namespace plab::torch_abi
