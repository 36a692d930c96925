// SPDX-License-Identifier: Apache-2.0
// The events of one thread's CUDA calls: a ring with one producer (that thread) and one consumer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace plab::recorder {

struct LaunchEvent {
  uint64_t start_tick, end_tick;  // tick_clock's
  uint64_t peek_seq, node_seq;
  uint64_t node_thread, self_thread;
  const void* node_type;  // the vtable of the autograd node; its name is looked up later
  uint32_t correlation, stack;
  int32_t return_value;
  uint16_t cbid;
  uint8_t flags;  // spool::ApiFlag
  uint8_t pad;
  uint32_t context, stream;  // CUPTI's numbers; spool::kNone where the call names no stream to wait for
  uint32_t own_ticks;        // of ours, from start_tick on
};
static_assert(sizeof(LaunchEvent) == 88);

class LaunchRing {
 public:
  static constexpr uint64_t kCapacity = 1 << 14;

  explicit LaunchRing(uint32_t thread) : thread_(thread), events_(new LaunchEvent[kCapacity]) {}

  // Thread: the owner.
  void push(const LaunchEvent& event) noexcept {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - known_tail_ == kCapacity) {
      known_tail_ = tail_.load(std::memory_order_acquire);
      if (head - known_tail_ == kCapacity) {
        dropped_.store(dropped_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        return;
      }
    }
    events_[head % kCapacity] = event;
    head_.store(head + 1, std::memory_order_release);
  }

  // Thread: the owner. Our own time behind a call, of one call in kSampleEvery: an event cannot say it of itself.
  static constexpr uint32_t kSampleEvery = 64;
  bool sample_now() noexcept { return ++calls_ % kSampleEvery == 0; }
  void add_exit(uint64_t ticks) noexcept {
    exit_ticks_.store(exit_ticks_.load(std::memory_order_relaxed) + ticks, std::memory_order_relaxed);
    exit_samples_.store(exit_samples_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // Thread: the consumer. Calls visit(event) for every event in the ring. If visit throws, this event and the
  // following ones stay in the ring.
  template <class Visit>
  void drain(Visit visit) {
    const uint64_t head = head_.load(std::memory_order_acquire);
    struct Progress {
      std::atomic<uint64_t>& stored;
      uint64_t tail;
      ~Progress() { stored.store(tail, std::memory_order_release); }
    } at{tail_, tail_.load(std::memory_order_relaxed)};
    for (; at.tail != head; ++at.tail) visit(events_[at.tail % kCapacity]);
  }

  uint32_t thread() const noexcept { return thread_; }
  uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }
  uint64_t exit_ticks() const noexcept { return exit_ticks_.load(std::memory_order_relaxed); }
  uint64_t exit_samples() const noexcept { return exit_samples_.load(std::memory_order_relaxed); }

  std::atomic<bool> owner_gone{false};

 private:
  const uint32_t thread_;
  std::atomic<uint64_t> dropped_{0}, exit_ticks_{0}, exit_samples_{0};
  // The owner's part is one cache line, which the consumer only reads.
  alignas(64) std::atomic<uint64_t> head_{0};
  uint64_t known_tail_ = 0;  // the consumer may be further
  const std::unique_ptr<LaunchEvent[]> events_;
  uint32_t calls_ = 0;
  alignas(64) std::atomic<uint64_t> tail_{0};
};

// All rings of a recording. A ring outlives its thread until it was drained.
class LaunchRings {
 public:
  std::shared_ptr<LaunchRing> add(uint32_t thread) {
    auto ring = std::make_shared<LaunchRing>(thread);
    std::lock_guard lock(mutex_);
    rings_.push_back(ring);
    return ring;
  }

  // Thread: the consumer. visit(ring, event).
  template <class Visit>
  void drain(Visit visit) {
    std::vector<std::shared_ptr<LaunchRing>> rings;
    {
      std::lock_guard lock(mutex_);
      rings = rings_;
    }
    for (const auto& ring : rings) {
      const bool last = ring->owner_gone.load(std::memory_order_acquire);  // read first: nothing follows
      ring->drain([&](const LaunchEvent& event) { visit(*ring, event); });
      if (last) retire(ring);
    }
  }

  // After the last drain: the rings of threads that live on belong to them alone.
  void clear() {
    std::lock_guard lock(mutex_);
    rings_.clear();
    retired_ = {};
  }

  struct Totals {
    uint64_t dropped = 0, exit_ticks = 0, exit_samples = 0;
  };
  Totals totals() {
    std::lock_guard lock(mutex_);
    Totals sum = retired_;
    for (const auto& ring : rings_) add_to(sum, *ring);
    return sum;
  }

 private:
  static void add_to(Totals& sum, const LaunchRing& ring) {
    sum.dropped += ring.dropped();
    sum.exit_ticks += ring.exit_ticks();
    sum.exit_samples += ring.exit_samples();
  }
  void retire(const std::shared_ptr<LaunchRing>& ring) {
    std::lock_guard lock(mutex_);
    add_to(retired_, *ring);
    std::erase(rings_, ring);
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<LaunchRing>> rings_;
  Totals retired_;
};

}  // namespace plab::recorder
