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

typedef struct PlabFrame {
  const PyCodeObject* code;  // borrowed from the frame; 3.13+: may be another kind of object
  int32_t offset;            // bytes from the start of its bytecode; negative: not started
} PlabFrame;

enum { PLAB_MAX_FRAMES = 512 };

// A stack, innermost frame first. `count` is 0 before the first walk.
typedef struct PlabFrames {
  int count;
  int truncated;  // the chain was longer
  // Two frames have equal positions if they are at the same instruction of the same code object. Never 0.
  uintptr_t position[PLAB_MAX_FRAMES];
  const void* frame[PLAB_MAX_FRAMES];
} PlabFrames;

// NULL, or one sentence saying why this interpreter's frames cannot be read.
const char* plab_frames_unusable(void);

// The chain must not change during the call: it belongs to the calling thread, or the caller holds the GIL.
void plab_walk_frames(PyThreadState* thread, PlabFrames* frames);

// One of the frames just walked; the chain has not changed since.
PlabFrame plab_frame(const PlabFrames* frames, int i);

// After Py_AddPendingCall on a thread other than the main one: makes the main thread run it soon.
void plab_interrupt_main_thread(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
