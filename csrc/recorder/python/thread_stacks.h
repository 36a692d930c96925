// SPDX-License-Identifier: Apache-2.0
// A cache per thread. A stack equal to the thread's previous one costs one comparison per frame. A stack equal to any
// earlier one costs one more look-up per frame that differs. Only its own thread uses it.
//
// Between two launches a framework replaces what the processor's caches held, so what counts is the number of cache
// misses that wait for one another. Frames are compared in place, array by array; the look-ups of all frames that
// differ are begun together, because the place of each follows from the frames alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "recorder/python/frames.h"
#include "recorder/python/stacks.h"

namespace plab::recorder {

struct Frame {
  const PyCodeObject* code;
  int32_t offset;
};

// A trie node, and whether the address of its code object is known to keep meaning this code.
struct ResolvedFrame {
  StackId node;
  bool lasting;
};

class ThreadStacks {
 public:
  ThreadStacks() { walks_[0].count = walks_[1].count = 0; }

  // For plab_walk_frames(), before find().
  PlabFrames& frames() { return walks_[turn_]; }

  // The node of the `depth` innermost frames of frames() below `root`. `resolve(parent, frame)` -> ResolvedFrame is
  // called for what this thread has not seen since `epoch` last changed. May throw what `resolve` throws, and
  // std::bad_alloc.
  template <class Resolve>
  StackId find(int depth, StackId root, uint32_t epoch, Resolve&& resolve) {
    const PlabFrames& now = walks_[turn_];
    int i = epoch == epoch_ && root == root_ ? same_as_before(depth) : 0;
    StackId node = i > 0 ? nodes_[i - 1] : root;
    epoch_ = epoch;
    root_ = root;
    lasting_ = 0;  // if a look-up throws
    int lasting = i;
    if (i < depth) begin_look_ups(i, depth);
    for (; i < depth; ++i) {
      const int at = depth - 1 - i;
      const ResolvedFrame found = look_up(node, {now.code[at], now.offset[at]}, hashes_[i], resolve);
      nodes_[i] = node = found.node;
      if (found.lasting && lasting == i) ++lasting;
    }
    depth_ = depth;
    lasting_ = lasting;
    turn_ ^= 1;
    return node;
  }

 private:
  struct alignas(32) Step {  // from a caller's node through a frame to that frame's node
    const PyCodeObject* code = nullptr;
    uint64_t hash = 0;
    int32_t offset = 0;
    StackId parent = 0, node = 0;
    uint32_t epoch = 0;
  };

  // How many of the outermost frames are those of the stack before, and have nodes that last.
  int same_as_before(int depth) const {
    const PlabFrames &now = walks_[turn_], &before = walks_[turn_ ^ 1];
    const int most = std::min(depth, lasting_), shift = depth_ - depth;
    int at = depth - 1;
    for (const int end = at - most; at != end; --at) {
      if (now.code[at] != before.code[at + shift] || now.offset[at] != before.offset[at + shift]) break;
    }
    return depth - 1 - at;
  }

  // The hash of a stack follows from its caller's stack's. So the places of all steps from frame `first` on are
  // known, and their memory is requested, before the first of them is read.
  void begin_look_ups(int first, int depth) {
    const PlabFrames& now = walks_[turn_];
    uint64_t hash = first > 0 ? hashes_[first - 1] : root_;
    for (int i = first; i < depth; ++i) {
      const int at = depth - 1 - i;
      hash = (hash ^ reinterpret_cast<uintptr_t>(now.code[at])) * 0x9E3779B97F4A7C15u;
      hash = (hash ^ hash >> 29 ^ static_cast<uint32_t>(now.offset[at])) * 0xD6E8FEB86659FD93u;
      hashes_[i] = hash;
      if (!steps_.empty()) __builtin_prefetch(&steps_[place(hash)]);
    }
  }

  size_t place(uint64_t hash) const { return (hash ^ hash >> 32) & (steps_.size() - 1); }

  template <class Resolve>
  ResolvedFrame look_up(StackId parent, const Frame& frame, uint64_t hash, Resolve&& resolve) {
    if (steps_used_ * 2 >= steps_.size()) grow();
    Step& step = slot(parent, frame, hash);
    if (step.epoch == epoch_ && step.code != nullptr) return {step.node, true};
    const ResolvedFrame found = resolve(parent, frame);
    if (found.lasting) {
      if (step.code == nullptr) ++steps_used_;
      step = {frame.code, hash, frame.offset, parent, found.node, epoch_};
    }
    return found;
  }

  // The step's place: its own, or the first free one (empty, or left over from an earlier epoch).
  Step& slot(StackId parent, const Frame& frame, uint64_t hash) {
    for (size_t at = place(hash);; at = (at + 1) & (steps_.size() - 1)) {
      Step& step = steps_[at];
      if (step.code == nullptr || step.epoch != epoch_) return step;
      if (step.code == frame.code && step.offset == frame.offset && step.parent == parent) return step;
    }
  }

  // Doubles where this epoch's steps need it; otherwise only drops those of earlier epochs.
  [[gnu::cold]] void grow() {
    size_t live = 0;
    for (const Step& step : steps_) live += step.code != nullptr && step.epoch == epoch_;
    std::vector<Step> old(live * 4 >= steps_.size() ? std::max<size_t>(256, steps_.size() * 2)
                                                    : steps_.size());
    old.swap(steps_);
    steps_used_ = 0;
    for (const Step& step : old) {
      if (step.code == nullptr || step.epoch != epoch_) continue;
      slot(step.parent, {step.code, step.offset}, step.hash) = step;
      ++steps_used_;
    }
  }

  uint32_t epoch_ = 0;
  StackId root_ = 0;
  int turn_ = 0;                    // walks_[turn_] is the next one, the other is the stack before
  int depth_ = 0;                   // of the stack before
  int lasting_ = 0;                 // how many of its outermost frames, without a gap, have nodes that last
  std::vector<Step> steps_;         // open addressing; the size is a power of two
  size_t steps_used_ = 0;
  PlabFrames walks_[2];
  StackId nodes_[PLAB_MAX_FRAMES];    // of the stack before, outermost first
  uint64_t hashes_[PLAB_MAX_FRAMES];  // and of the stacks down to each of its frames
};

// The calling thread's own, made at its first call and freed when it ends; null while the thread is ending.
ThreadStacks* this_thread_stacks() noexcept;

namespace python_stacks {

// The stack of `thread`, of which `memory` remembers the last. Thread: its own, or one that holds the GIL.
StackId capture_of(PyThreadState* thread, ThreadStacks& memory) noexcept;

}  // namespace python_stacks

}  // namespace plab::recorder
