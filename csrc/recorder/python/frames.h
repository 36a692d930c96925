// SPDX-License-Identifier: Apache-2.0
// A thread's own frame chain, read without the GIL and without creating frame objects. One C file per layout
// of CPython's frames (the internal headers are C, not C++); exactly one of them is not empty in a given
// build.
#pragma once

#include <Python.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(hidden)  // C files do not get the C++ preset

enum { PLAB_MAX_FRAMES = 512 };

// A stack, innermost frame first. Zero before the first walk.
typedef struct PlabFrames {
  int count;
  int truncated;  // there were more than PLAB_MAX_FRAMES
  const PyCodeObject* code[PLAB_MAX_FRAMES];  // borrowed from the frame; 3.13+: may be another kind of object
  int32_t offset[PLAB_MAX_FRAMES];            // bytes from the start of its bytecode; negative: not started
  const void* link[PLAB_MAX_FRAMES];          // where the frame keeps the pointer to its caller's
} PlabFrames;

// NULL, or one sentence saying why this interpreter's frames cannot be read.
const char* plab_frames_unusable(void);

// The chain must not change during the call: it belongs to the calling thread, or the caller holds the GIL.
void plab_walk_frames(PyThreadState* thread, PlabFrames* frames);

// The frames are a linked list, of which the outer ones have not been touched since the last walk: one cache miss
// after the other. Most of them are where an earlier walk found them, so all are requested at once. A prefetch reads
// nothing: the frames may be gone.
static inline void plab_prefetch_frames(const PlabFrames* earlier) {
  for (int i = 0; i < earlier->count; ++i) __builtin_prefetch(earlier->link[i]);
}

// After Py_AddPendingCall on a thread other than the main one: makes the main thread run it soon.
void plab_interrupt_main_thread(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
