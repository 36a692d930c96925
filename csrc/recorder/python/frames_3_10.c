// SPDX-License-Identifier: Apache-2.0
// CPython 3.10: frames are heap objects in a linked list and their layout is public.
#include "recorder/python/frames.h"

#if PY_VERSION_HEX < 0x030B0000

#include <frameobject.h>

const char* plab_frames_unusable(void) { return NULL; }

void plab_walk_frames(PyThreadState* thread, PlabFrames* frames) {
  plab_prefetch_frames(frames);
  int count = 0;
  const PyFrameObject* frame = thread->frame;
  for (; frame != NULL && count < PLAB_MAX_FRAMES; frame = frame->f_back, ++count) {
    frames->code[count] = frame->f_code;
    frames->offset[count] = frame->f_lasti * 2;  // f_lasti counts instructions of two bytes
    frames->link[count] = &frame->f_back;
  }
  frames->count = count;
  frames->truncated = frame != NULL;
}

#else
typedef int plab_not_python_3_10;  // ISO C requires a declaration in every file
#endif
