// SPDX-License-Identifier: Apache-2.0
// The memory that CUPTI writes its records into, and the two calls that hand it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace plab::recorder {

struct FilledBuffer {
  uint8_t* data;
  size_t valid_bytes;
};

// A pool of zeroed buffers. CUPTI asks for a buffer during a launch of the program. So the launch path only pops one
// from the pool, and the consumer allocates and zeroes them. Only if the pool is empty does the launch path map a
// buffer itself. The lock is never held during a call into CUPTI, which takes its own locks around these callbacks,
// in either order.
class ActivityBuffers {
 public:
  // `refusable`: this CUPTI accepts "no buffer"; older ones crash on it and get a scratch buffer whose
  // contents are thrown away.
  void prepare(size_t buffer_bytes, size_t ahead, size_t most, bool refusable);
  // Gives the memory back, except what CUPTI did not return yet: it may still write there.
  void release();

  // Thread: any thread inside a CUDA call.
  void request(uint8_t** data, size_t* bytes) noexcept;
  // Thread: CUPTI's worker, a flushing thread, or a thread inside a CUDA call.
  void complete(uint8_t* data, size_t valid_bytes) noexcept;

  // Thread: the consumer.
  std::vector<FilledBuffer> take_filled();
  void give_back(uint8_t* data);
  void keep_ahead() noexcept;  // at least `ahead` free buffers, if the limit allows it

  struct Usage {
    uint64_t starved = 0;    // requests without a buffer: CUPTI counts what it then drops
    uint64_t discarded = 0;  // requests that got the scratch buffer: CUPTI does not know of this loss
    uint64_t completed = 0;  // buffers that came back
    size_t bytes = 0;        // of memory
  };
  Usage usage() noexcept;

 private:
  struct Buffer {
    uint8_t* data;
    size_t bytes;
  };
  uint8_t* allocate(bool populated) noexcept;

  std::mutex mutex_;
  size_t buffer_bytes_ = 0, ahead_ = 0, most_ = 0;
  bool refusable_ = true;
  size_t count_ = 0;  // of all buffers of this recording
  std::vector<uint8_t*> free_, lent_;
  std::vector<FilledBuffer> filled_;
  std::vector<Buffer> late_;  // of earlier recordings, still with CUPTI
  uint8_t* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  uint64_t starved_ = 0, discarded_ = 0, completed_ = 0;
};

}  // namespace plab::recorder
