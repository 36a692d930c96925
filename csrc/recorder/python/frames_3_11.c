// SPDX-License-Identifier: Apache-2.0
// CPython 3.11 and 3.12: interpreter frames on a stack of their own, reached through the thread's C frame.
#define Py_BUILD_CORE 1
#include "recorder/python/frames.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_frame.h>

typedef const _PyInterpreterFrame* PlabLink;

// A thread that Python never saw puts its state into the interpreter's list before it sets it up, without the GIL.
static inline PlabLink first_frame(PyThreadState* thread) {
  return thread->cframe != NULL ? thread->cframe->current_frame : NULL;
}
static inline PlabLink caller(PlabLink frame) { return frame->previous; }
static inline uintptr_t position(PlabLink frame) {
  return (uintptr_t)frame->prev_instr;
}  // in its code object

#if PY_VERSION_HEX >= 0x030C0000
// What the frames that mark the C stack execute. Their owner says the same, in another cache line.
static const PyCodeObject* marker_code;

const char* plab_frames_unusable(void) {
  PlabLink frame = first_frame(PyThreadState_Get());
  while (frame != NULL && frame->owner < FRAME_OWNED_BY_CSTACK) frame = caller(frame);
  if (frame == NULL) return "the interpreter's own frames are not among those of Python";
  marker_code = frame->f_code;
  return NULL;
}

static inline int is_python(PlabLink frame) { return frame->f_code != marker_code; }
#else
const char* plab_frames_unusable(void) { return NULL; }

static inline int is_python(PlabLink frame) { return (void)frame, 1; }
#endif

#include "recorder/python/frames_walk.h"

PlabFrame plab_frame(const PlabFrames* frames, int i) {
  const _PyInterpreterFrame* frame = frames->frame[i];
  const PlabFrame found = {
      frame->f_code, (int32_t)((const char*)frame->prev_instr - (const char*)_PyCode_CODE(frame->f_code))};
  return found;
}

#else
typedef int plab_not_python_3_11;  // ISO C requires a declaration in every file
#endif
