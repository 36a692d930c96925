// SPDX-License-Identifier: Apache-2.0
// A cache per thread. A stack equal to the thread's previous one costs one comparison per frame. A stack equal to any
// earlier one costs one more look-up per frame that differs. Only its own thread uses it.
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
  ThreadStacks() { previous_.reserve(python_stacks::kMaxDepth); }

  PlabFrame frames[python_stacks::kMaxDepth];  // the stack being captured, innermost first

  // The node of frames[0..count) below `root`. `resolve(parent, frame)` -> ResolvedFrame is called for what
  // this thread has not seen since `epoch` last changed. May throw what `resolve` throws, and std::bad_alloc.
  template <class Resolve>
  StackId find(int count, StackId root, uint32_t epoch, Resolve&& resolve) {
    if (epoch != epoch_ || root != root_) previous_.clear();
    epoch_ = epoch;
    root_ = root;
    const size_t depth = static_cast<size_t>(count);
    StackId node = root;
    size_t i = 0;
    for (; i < depth && i < previous_.size(); ++i) {
      const Seen& seen = previous_[i];
      const PlabFrame& frame = frames[depth - 1 - i];
      if (seen.code != frame.code || seen.offset != frame.offset || !seen.lasting) break;
      node = seen.node;
    }
    previous_.resize(i);
    for (; i < depth; ++i) {
      const PlabFrame& frame = frames[depth - 1 - i];
      const ResolvedFrame found = look_up(node, frame, resolve);
      node = found.node;
      previous_.push_back({frame.code, frame.offset, node, found.lasting});
    }
    return node;
  }

 private:
  struct Seen {
    const PyCodeObject* code;
    int32_t offset;
    StackId node;
    bool lasting;
  };
  struct Step {  // from a caller's node through a frame to that frame's node
    const PyCodeObject* code = nullptr;
    int32_t offset = 0;
    StackId parent = 0, node = 0;
    uint32_t epoch = 0;
  };

  template <class Resolve>
  ResolvedFrame look_up(StackId parent, const PlabFrame& frame, Resolve&& resolve) {
    if (steps_used_ * 2 >= steps_.size()) grow();
    Step& step = slot(parent, frame);
    if (step.epoch == epoch_ && step.code != nullptr) return {step.node, true};
    const ResolvedFrame found = resolve(parent, frame);
    if (found.lasting) {
      if (step.code == nullptr) ++steps_used_;
      step = {frame.code, frame.offset, parent, found.node, epoch_};
    }
    return found;
  }

  // The step's place: its own, or the first free one (empty, or left over from an earlier epoch).
  Step& slot(StackId parent, const PlabFrame& frame) {
    const uint64_t key = reinterpret_cast<uintptr_t>(frame.code) * 0x9E3779B97F4A7C15u ^
                         (uint64_t{parent} << 32 | static_cast<uint32_t>(frame.offset)) * 0xD6E8FEB86659FD93u;
    const size_t mask = steps_.size() - 1;
    for (size_t at = (key ^ key >> 29) & mask;; at = (at + 1) & mask) {
      Step& step = steps_[at];
      if (step.code == nullptr || step.epoch != epoch_) return step;
      if (step.code == frame.code && step.offset == frame.offset && step.parent == parent) return step;
    }
  }

  // Doubles where this epoch's steps need it; otherwise only drops those of earlier epochs.
  void grow() {
    size_t live = 0;
    for (const Step& step : steps_) live += step.code != nullptr && step.epoch == epoch_;
    std::vector<Step> old(live * 4 >= steps_.size() ? std::max<size_t>(256, steps_.size() * 2)
                                                    : steps_.size());
    old.swap(steps_);
    steps_used_ = 0;
    for (const Step& step : old) {
      if (step.code == nullptr || step.epoch != epoch_) continue;
      slot(step.parent, {step.code, step.offset}) = step;
      ++steps_used_;
    }
  }

  uint32_t epoch_ = 0;
  StackId root_ = 0;
  std::vector<Seen> previous_;  // the last stack, outermost first
  std::vector<Step> steps_;     // open addressing; the size is a power of two
  size_t steps_used_ = 0;
};

// The calling thread's own, made at its first call and freed when it ends; null while the thread is ending.
ThreadStacks* this_thread_stacks() noexcept;

namespace python_stacks {

// The stack of `thread`, of which `memory` remembers the last. Thread: its own, or one that holds the GIL.
StackId capture_of(PyThreadState* thread, ThreadStacks& memory) noexcept;

}  // namespace python_stacks

}  // namespace plab::recorder
