// SPDX-License-Identifier: Apache-2.0
// A second stream beside one: products of small matrices leave most of a GPU idle, and two of them fit at
// once.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::ops {

/// What goes to side() after split() comes after all that the stream had then; what the stream gets after
/// join() comes after all that the side had then. The destructor joins what is still split, so that memory
/// which the side uses is not given to others while it does. Inside a CUDA graph capture the side is captured
/// too. There is one side per thread and device, so forks of one thread wait for each other.
class Fork {
 public:
  explicit Fork(cudaStream_t stream);  // of the current device
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  ~Fork();

  cudaStream_t side() const;
  void split();
  void join();

 private:
  struct Side;
  static Side& side_of(cudaStream_t stream);

  cudaStream_t stream_;
  Side& side_;
  bool is_split_ = false;
};

/// Whether a product of two d x d matrices has fewer tiles than the current device has SMs.
bool leaves_gpu_idle(int64_t d);

}  // namespace plab::ops
