// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "cuda/launch.h"
#include "ops/heavy_layer/fork.h"

namespace plab::ops {

struct Fork::Side {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;

  void create() {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // lets these be created during a capture
    PLAB_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    PLAB_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    PLAB_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    PLAB_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  }

  // Makes `after` wait for the work that `before` has now. The event can be reused at once: a wait uses the state at
  // the time of the call.
  void order(cudaStream_t before, cudaStream_t after) {
    PLAB_CUDA_CHECK(cudaEventRecord(event, before));
    PLAB_CUDA_CHECK(cudaStreamWaitEvent(after, event));
  }

  ~Side() {  // at thread exit; at process exit CUDA may be gone already, which is harmless
    if (event != nullptr) cudaEventDestroy(event);
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
};

// A stream that belongs to a capture cannot take other work until the capture ends, so captures have their own
// side stream.
Fork::Side& Fork::side_of(cudaStream_t stream) {
  thread_local std::array<std::array<Side, 2>, cuda::kMaxDevices> sides;
  cudaStreamCaptureStatus status{};
  PLAB_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  Side& side =
      sides[static_cast<size_t>(cuda::current_device())][status == cudaStreamCaptureStatusNone ? 0 : 1];
  if (side.stream == nullptr) side.create();
  return side;
}

Fork::Fork(cudaStream_t stream) : stream_(stream), side_(side_of(stream)) {}

Fork::~Fork() {
  if (is_split_ && cudaEventRecord(side_.event, side_.stream) == cudaSuccess)
    cudaStreamWaitEvent(stream_, side_.event);
}

cudaStream_t Fork::side() const { return side_.stream; }

void Fork::split() {
  side_.order(stream_, side_.stream);
  is_split_ = true;
}

void Fork::join() {
  side_.order(side_.stream, stream_);
  is_split_ = false;
}

bool leaves_gpu_idle(int64_t d) {
  constexpr int64_t kTile = 128;  // of the library's products
  const int64_t tiles = cuda::ceil_div(d, kTile);
  return tiles * tiles < cuda::sm_count();
}

}  // namespace plab::ops
