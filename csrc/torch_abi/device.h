// SPDX-License-Identifier: Apache-2.0
// Where a CUDA kernel must run: on its tensor's device, on torch's current stream of that device.
#pragma once

#include <cstdint>

#include "torch_abi/tensor.h"

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::torch_abi {

// Makes the tensor's device current for the life of the object; the stream is the one current on that device.
class CudaScope {
 public:
  explicit CudaScope(const Tensor& tensor) {
    const int32_t index = tensor.device().index;
    PLAB_TORCH(aoti_torch_create_device_guard, index, &guard_);
    void* stream = nullptr;
    const ErrorCode code = torch.aoti_torch_get_current_cuda_stream(index, &stream);
    if (code != 0) {
      torch.aoti_torch_delete_device_guard(guard_);
      throw_torch_error("aoti_torch_get_current_cuda_stream");
    }
    stream_ = static_cast<cudaStream_t>(stream);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;
  ~CudaScope() { torch.aoti_torch_delete_device_guard(guard_); }

  cudaStream_t stream() const { return stream_; }

 private:
  DeviceGuardHandle guard_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

// Makes `stream` torch's current stream on its device, so that torch's own ops use it too.
class StreamScope {
 public:
  StreamScope(cudaStream_t stream, int32_t device) {
    PLAB_TORCH(aoti_torch_create_cuda_stream_guard, stream, device, &guard_);
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  ~StreamScope() { torch.aoti_torch_delete_cuda_stream_guard(guard_); }

 private:
  StreamGuardHandle guard_ = nullptr;
};

}  // namespace plab::torch_abi
