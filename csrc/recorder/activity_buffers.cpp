// SPDX-License-Identifier: Apache-2.0
#include "recorder/activity_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace plab::recorder {

uint8_t* ActivityBuffers::allocate() noexcept {
  // Populated now: the first touch of a page must not happen inside a launch.
  void* data =
      mmap(nullptr, buffer_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<uint8_t*>(data);
}

void ActivityBuffers::prepare(size_t buffer_bytes, size_t ahead, size_t most, bool refusable) {
  {
    std::lock_guard lock(mutex_);
    buffer_bytes_ = buffer_bytes;
    ahead_ = ahead;
    most_ = most;
    refusable_ = refusable;
    starved_ = completed_ = 0;
    // The callbacks must not allocate.
    all_.reserve(most);
    free_.reserve(most);
    filled_.reserve(2 * most);
    if (!refusable_) scratch_ = allocate();
  }
  keep_ahead();
}

void ActivityBuffers::release() {
  std::lock_guard lock(mutex_);
  for (uint8_t* data : all_) munmap(data, buffer_bytes_);
  if (scratch_) munmap(scratch_, buffer_bytes_);
  all_.clear();
  free_.clear();
  filled_.clear();
  scratch_ = nullptr;
}

void ActivityBuffers::request(uint8_t** data, size_t* bytes) noexcept {
  std::lock_guard lock(mutex_);
  *bytes = buffer_bytes_;
  if (!free_.empty()) {
    *data = free_.back();
    free_.pop_back();
    return;
  }
  ++starved_;
  *data = refusable_ ? nullptr : scratch_;
  if (!*data) *bytes = 0;
}

void ActivityBuffers::complete(uint8_t* data, size_t valid_bytes) noexcept {
  std::lock_guard lock(mutex_);
  ++completed_;
  if (data && data != scratch_ && filled_.size() < filled_.capacity()) filled_.push_back({data, valid_bytes});
}

std::vector<FilledBuffer> ActivityBuffers::take_filled() {
  std::vector<FilledBuffer> taken;
  taken.reserve(2 * most_);
  std::lock_guard lock(mutex_);
  std::swap(taken, filled_);
  return taken;
}

void ActivityBuffers::give_back(uint8_t* data) {
  std::memset(data, 0, buffer_bytes_);  // CUPTI was promised zeroed buffers
  std::lock_guard lock(mutex_);
  if (std::find(all_.begin(), all_.end(), data) != all_.end()) free_.push_back(data);
}

void ActivityBuffers::keep_ahead() noexcept {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (free_.size() >= ahead_ || all_.size() >= most_) return;
    }
    uint8_t* data = allocate();  // outside of the lock: takes a millisecond
    if (!data) return;
    std::lock_guard lock(mutex_);
    all_.push_back(data);
    free_.push_back(data);
  }
}

}  // namespace plab::recorder
