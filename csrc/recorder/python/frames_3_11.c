// SPDX-License-Identifier: Apache-2.0
// CPython 3.11 and 3.12: interpreter frames on a stack of their own, reached through the thread's C frame.
#define Py_BUILD_CORE 1
#include "recorder/python/frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

const char* plab_frames_unusable(void) { return NULL; }

int plab_walk_frames(PyThreadState* thread, PlabFrame* frames, int room, int* truncated) {
  int count = 0;
  // A thread that Python never saw puts its state into the interpreter's list before it sets it up, without the GIL.
  const _PyInterpreterFrame* frame = thread->cframe != NULL ? thread->cframe->current_frame : NULL;
  for (; frame != NULL && count < room; frame = frame->previous) {
#if PY_VERSION_HEX >= 0x030C0000
    if (frame->owner >= FRAME_OWNED_BY_CSTACK) continue;  // a marker of the C stack, not a Python frame
#endif
    frames[count].code = frame->f_code;
    frames[count].offset =
        (int32_t)((const char*)frame->prev_instr - (const char*)_PyCode_CODE(frame->f_code));
    ++count;
  }
  *truncated = frame != NULL;
  return count;
}

#else
typedef int plab_not_python_3_11;  // ISO C requires a declaration in every file
#endif
