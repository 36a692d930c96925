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

// NULL, or one sentence saying why this interpreter's frames cannot be read.
const char* plab_frames_unusable(void);

// Fills `frames` innermost first and returns how many. `*truncated`: there were more than `room`.
// The chain must not change during the call: it belongs to the calling thread, or the caller holds the GIL.
int plab_walk_frames(PyThreadState* thread, PlabFrame* frames, int room, int* truncated);

// After Py_AddPendingCall on a thread other than the main one: makes the main thread run it soon.
void plab_interrupt_main_thread(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
