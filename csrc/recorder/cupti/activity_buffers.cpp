// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/activity_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace plab::recorder {

uint8_t* ActivityBuffers::allocate(bool populated) noexcept {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (populated ? MAP_POPULATE : 0);
  void* data = mmap(nullptr, buffer_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<uint8_t*>(data);
}

void ActivityBuffers::prepare(size_t buffer_bytes, size_t ahead, size_t most, bool refusable) {
  {
    std::lock_guard lock(mutex_);
    buffer_bytes_ = buffer_bytes;
    ahead_ = ahead;
    most_ = most;
    refusable_ = refusable;
    starved_ = discarded_ = completed_ = 0;
    // The callbacks must not allocate.
    free_.reserve(most);
    lent_.reserve(most);
    filled_.reserve(most);
    if (!refusable_ && scratch_bytes_ < buffer_bytes) {
      scratch_ = allocate(true);  // never freed: several threads may use it at once, at any time
      scratch_bytes_ = buffer_bytes;
    }
  }
  keep_ahead();
}

void ActivityBuffers::release() {
  std::lock_guard lock(mutex_);
  for (uint8_t* data : free_) munmap(data, buffer_bytes_);
  for (const FilledBuffer& buffer : filled_) munmap(buffer.data, buffer_bytes_);
  for (uint8_t* data : lent_) late_.push_back({data, buffer_bytes_});
  free_.clear();
  filled_.clear();
  lent_.clear();
  count_ = 0;
}

void ActivityBuffers::request(uint8_t** data, size_t* bytes) noexcept {
  std::lock_guard lock(mutex_);
  *bytes = buffer_bytes_;
  if (free_.empty() && count_ < most_) {
    // Several threads started at once, each with its own buffer: one system call is better than a loss.
    if (uint8_t* fresh = allocate(false)) {
      ++count_;
      free_.push_back(fresh);
    }
  }
  if (!free_.empty()) {
    *data = free_.back();
    free_.pop_back();
    lent_.push_back(*data);
    return;
  }
  ++starved_;
  *data = refusable_ ? nullptr : scratch_;
  *data ? ++discarded_ : *bytes = 0;
}

void ActivityBuffers::complete(uint8_t* data, size_t valid_bytes) noexcept {
  std::lock_guard lock(mutex_);
  ++completed_;
  if (const auto lent = std::find(lent_.begin(), lent_.end(), data); lent != lent_.end()) {
    lent_.erase(lent);
    filled_.push_back({data, valid_bytes});
    return;
  }
  // Neither a current buffer nor the scratch buffer: it is from an earlier recording, and its records are dropped.
  const auto late =
      std::find_if(late_.begin(), late_.end(), [data](const Buffer& b) { return b.data == data; });
  if (late == late_.end()) return;
  munmap(late->data, late->bytes);
  late_.erase(late);
}

std::vector<FilledBuffer> ActivityBuffers::take_filled() {
  std::vector<FilledBuffer> taken;
  taken.reserve(most_);
  std::lock_guard lock(mutex_);
  std::swap(taken, filled_);
  return taken;
}

void ActivityBuffers::give_back(uint8_t* data) {
  std::memset(data, 0, buffer_bytes_);  // CUPTI was promised zeroed buffers
  std::lock_guard lock(mutex_);
  free_.push_back(data);
}

void ActivityBuffers::keep_ahead() noexcept {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (free_.size() >= ahead_ || count_ >= most_) return;
    }
    // Populated now, so that the first access to a page does not happen inside a launch. It takes a
    // millisecond, so it is done without the lock.
    uint8_t* data = allocate(true);
    if (!data) return;
    std::lock_guard lock(mutex_);
    ++count_;
    free_.push_back(data);
  }
}

ActivityBuffers::Usage ActivityBuffers::usage() noexcept {
  std::lock_guard lock(mutex_);
  return {starved_, discarded_, completed_, count_ * buffer_bytes_};
}

}  // namespace plab::recorder
