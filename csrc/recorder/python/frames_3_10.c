// SPDX-License-Identifier: Apache-2.0
// CPython 3.10: frames are heap objects in a linked list and their layout is public.
#include "recorder/python/frames.h"

#if PY_VERSION_HEX < 0x030B0000

#include <frameobject.h>

const char* plab_frames_unusable(void) { return NULL; }

typedef const PyFrameObject* PlabLink;

static inline PlabLink first_frame(PyThreadState* thread) { return thread->frame; }
static inline PlabLink caller(PlabLink frame) { return frame->f_back; }
static inline int is_python(PlabLink frame) { return (void)frame, 1; }

// Code objects are 16 bytes apart at least and 2^47 bytes at most, and have fewer than 2^21 instructions: longer
// ones would need two million lines in one function. f_lasti is -1 before the first instruction.
static inline uintptr_t position(PlabLink frame) {
  return (uintptr_t)frame->f_code >> 4 << 21 | (uintptr_t)(frame->f_lasti + 1);
}

#include "recorder/python/frames_walk.h"

PlabFrame plab_frame(const PlabFrames* frames, int i) {
  const PyFrameObject* frame = frames->frame[i];
  const PlabFrame found = {frame->f_code, frame->f_lasti * 2};  // f_lasti counts instructions of two bytes
  return found;
}

#else
typedef int plab_not_python_3_10;  // ISO C requires a declaration in every file
#endif
