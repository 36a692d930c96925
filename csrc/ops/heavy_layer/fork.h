// SPDX-License-Identifier: Apache-2.0
// A second stream next to the first: small GEMMs leave most of a GPU idle, so two of them can run concurrently.
#pragma once

#include <cstdint>

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

namespace plab::ops {

/// After split(), work on side() runs after everything that was on the stream. After join(), work on the stream
/// runs after everything that was on side(). The destructor joins if needed, so memory that the side stream uses is
/// not reused too early. In a CUDA graph capture the side stream is captured too. There is one side stream per
/// thread and device, so forks of one thread wait for each other.
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
