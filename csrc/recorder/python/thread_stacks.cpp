// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/thread_stacks.h"

#include <new>

namespace plab::recorder {
namespace {

// Plain thread-locals next to the owner: reading them needs no guard, even after the owner is destroyed.
thread_local ThreadStacks* t_stacks = nullptr;
thread_local ThreadStacks** t_known = nullptr;
thread_local bool t_ended = false;

struct Owner {
  ~Owner() {
    t_ended = true;  // other destructors of this thread may still call CUDA
    delete t_stacks;
    t_stacks = nullptr;
    if (t_known != nullptr) *t_known = nullptr;
  }
};

ThreadStacks* make() noexcept {
  if (t_ended) return nullptr;
  try {
    static thread_local Owner owner;
    (void)owner;
    t_stacks = new ThreadStacks;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  return t_stacks;
}

}  // namespace

ThreadStacks* this_thread_stacks(ThreadStacks** known) noexcept {
  ThreadStacks* mine = t_stacks != nullptr ? t_stacks : make();
  if (known != nullptr && mine != nullptr) *(t_known = known) = mine;
  return mine;
}

}  // namespace plab::recorder
