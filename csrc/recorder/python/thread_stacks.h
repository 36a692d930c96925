// SPDX-License-Identifier: Apache-2.0
// A cache per thread. A stack equal to the thread's previous one costs one comparison per frame. A stack equal to any
// earlier one costs one more look-up per frame that differs. Only its own thread uses it.
//
// Between two launches a framework replaces what the processor's caches held, so what counts is the number of cache
// misses that wait for one another. The look-ups of all frames that differ are begun together: the place of each follows
// from the frames alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "recorder/python/frames.h"
#include "recorder/python/stacks.h"

namespace plab::recorder {

// A trie node, and whether the address of its code object is known to keep meaning this code.
struct ResolvedFrame {
  StackId node;
  bool lasting;
};

class ThreadStacks {
 public:
  ThreadStacks() { walks_[0].count = walks_[1].count = 0; }

  // For plab_walk_frames(), before find(). Another one each time.
  PlabFrames& frames() { return walks_[turn_]; }

  // The node of frames() below `root`, without the outermost ones that `launcher()` counts. `resolve(parent, frame)` ->
  // ResolvedFrame is called for what this thread has not seen since `epoch` last changed. May throw what `resolve`
  // throws, and std::bad_alloc.
  template <class CountLauncher, class Resolve>
  StackId find(StackId root, uint32_t epoch, CountLauncher&& launcher, Resolve&& resolve) {
    const int depth = frames().count;
    int i = epoch == epoch_ && root == root_ ? same_as_before() : 0;
    if (i <= launcher_) {  // else they are the same, too
      launcher_ = launcher();
      i = std::min(i, launcher_);
      for (; i < launcher_; ++i) nodes_[i] = root, hashes_[i] = 0;
    }
    StackId node = i > 0 ? nodes_[i - 1] : root;
    epoch_ = epoch;
    root_ = root;
    lasting_ = 0;  // if a look-up throws
    int lasting = i;
    if (i < depth) begin_look_ups(i);
    for (; i < depth; ++i) {
      const ResolvedFrame found = look_up(node, i, resolve);
      nodes_[i] = node = found.node;
      if (found.lasting && lasting == i) ++lasting;
    }
    lasting_ = lasting;
    turn_ ^= 1;
    return node;
  }

 private:
  struct alignas(32) Step {  // from a caller's node through a frame to that frame's node
    uintptr_t position = 0;  // PlabFrames's; 0: empty
    uint64_t hash = 0;
    StackId parent = 0, node = 0;
    uint32_t epoch = 0;
  };

  // How many of the outermost frames are those of the stack before, and have nodes that last.
  int same_as_before() const {
    const PlabFrames &now = walks_[turn_], &before = walks_[turn_ ^ 1];
    const uintptr_t* a = now.position + now.count;
    const uintptr_t* b = before.position + before.count;
    const uintptr_t* const end = a - std::min(now.count, lasting_);
    while (a != end && a[-1] == b[-1]) --a, --b;
    return static_cast<int>(now.position + now.count - a);
  }

  // The hash of a stack follows from its caller's stack's. So the places of all steps from frame `first` on are
  // known, and their memory is requested, before the first of them is read.
  void begin_look_ups(int first) {
    const PlabFrames& now = walks_[turn_];
    uint64_t hash = first > 0 ? hashes_[first - 1] : 0;
    for (int i = first; i < now.count; ++i) {
      hash = (hash ^ now.position[now.count - 1 - i]) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
      hashes_[i] = hash;
      if (!steps_.empty()) __builtin_prefetch(&steps_[place(hash)]);
    }
  }

  size_t place(uint64_t hash) const { return hash & (steps_.size() - 1); }

  // Of frame i, counted from the outermost one.
  template <class Resolve>
  ResolvedFrame look_up(StackId parent, int i, Resolve&& resolve) {
    const PlabFrames& now = walks_[turn_];
    const int at = now.count - 1 - i;
    const uintptr_t position = now.position[at];
    if (steps_used_ * 2 >= steps_.size()) grow();
    Step& step = slot(parent, position, hashes_[i]);
    if (step.epoch == epoch_ && step.position != 0) return {step.node, true};
    const ResolvedFrame found = resolve(parent, plab_frame(&now, at));
    if (found.lasting) {
      if (step.position == 0) ++steps_used_;
      step = {position, hashes_[i], parent, found.node, epoch_};
    }
    return found;
  }

  // The step's place: its own, or the first free one (empty, or left over from an earlier epoch).
  Step& slot(StackId parent, uintptr_t position, uint64_t hash) {
    for (size_t at = place(hash);; at = (at + 1) & (steps_.size() - 1)) {
      Step& step = steps_[at];
      if (step.position == 0 || step.epoch != epoch_) return step;
      if (step.position == position && step.parent == parent) return step;
    }
  }

  // Doubles where this epoch's steps need it; otherwise only drops those of earlier epochs.
  [[gnu::cold]] void grow() {
    size_t live = 0;
    for (const Step& step : steps_) live += step.position != 0 && step.epoch == epoch_;
    std::vector<Step> old(live * 4 >= steps_.size() ? std::max<size_t>(256, steps_.size() * 2)
                                                    : steps_.size());
    old.swap(steps_);
    steps_used_ = 0;
    for (const Step& step : old) {
      if (step.position == 0 || step.epoch != epoch_) continue;
      slot(step.parent, step.position, step.hash) = step;
      ++steps_used_;
    }
  }

  uint32_t epoch_ = 0;
  StackId root_ = 0;
  int turn_ = 0;             // walks_[turn_] is the next one, the other is the stack before
  int launcher_ = 0;         // how many of the stack's outermost frames are the launcher's
  int lasting_ = 0;          // how many of its outermost frames, without a gap, have nodes that last
  std::vector<Step> steps_;  // open addressing; the size is a power of two
  size_t steps_used_ = 0;
  PlabFrames walks_[2];
  StackId nodes_[PLAB_MAX_FRAMES];    // of the stack before, outermost first
  uint64_t hashes_[PLAB_MAX_FRAMES];  // and of the stacks down to each of its frames
};

// The calling thread's own, made at its first call and freed when it ends; null while the thread is ending. `*known`,
// if there is one, gets it, and null when it is freed.
ThreadStacks* this_thread_stacks(ThreadStacks** known) noexcept;

namespace python_stacks {

// The stack of `thread`, of which `memory` remembers the last. Thread: its own, or one that holds the GIL.
StackId capture_of(PyThreadState* thread, ThreadStacks& memory) noexcept;

}  // namespace python_stacks

}  // namespace plab::recorder
