// SPDX-License-Identifier: Apache-2.0
// CPython 3.10: frames are heap objects in a linked list and their layout is public.
#include "recorder/python/frames.h"

#if PY_VERSION_HEX < 0x030B0000

#include <frameobject.h>

const char* plab_frames_unusable(void) { return NULL; }

int plab_walk_frames(PyThreadState* thread, PlabFrame* frames, int room, int* truncated) {
  int count = 0;
  const PyFrameObject* frame = thread->frame;
  for (; frame != NULL && count < room; frame = frame->f_back, ++count) {
    frames[count].code = frame->f_code;
    frames[count].offset = frame->f_lasti * 2;  // f_lasti counts instructions of two bytes
  }
  *truncated = frame != NULL;
  return count;
}

#else
typedef int plab_not_python_3_10;  // ISO C requires a declaration in every file
#endif
