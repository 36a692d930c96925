// SPDX-License-Identifier: Apache-2.0
// CPython 3.13 and 3.14: the running interpreter publishes the offsets of its fields (the table that
// out-of-process debuggers read), so a patch release that moves them works too.
#define Py_BUILD_CORE 1
#include "recorder/python/frames.h"

#if PY_VERSION_HEX >= 0x030D0000 && PY_VERSION_HEX < 0x030F0000

#include <internal/pycore_runtime.h>
#include <string.h>

// Frames of the interpreter itself carry this owner or a higher one, in both versions.
enum { kFirstShimOwner = 3 };

static struct {
  size_t current_frame, previous, executable, instr_ptr, owner;  // bytes from the start of their struct
} at;

#ifdef Py_GIL_DISABLED
// Loading this module switches the lock of a free-threaded build on, unless the user insists (-X gil=0).
static const char* lock_unusable(void) {
#if PY_VERSION_HEX >= 0x030E0000
  return "free-threaded Python 3.14 and later has a bytecode per thread, whose offsets are not known here";
#else
  PyObject* ask = PySys_GetObject("_is_gil_enabled");
  PyObject* answer = ask != NULL ? PyObject_CallNoArgs(ask) : NULL;
  const int enabled = answer == Py_True;
  Py_XDECREF(answer);
  PyErr_Clear();
  return enabled ? NULL : "Python runs without its lock: code objects can die while they are looked at";
#endif
}
#else
static const char* lock_unusable(void) { return NULL; }
#endif

const char* plab_frames_unusable(void) {
  const char* reason = lock_unusable();
  if (reason != NULL) return reason;
  const _Py_DebugOffsets* table = &_PyRuntime.debug_offsets;
  if (memcmp(table->cookie, "xdebugpy", 8) != 0) return "the interpreter does not publish its debug offsets";
  if (table->version >> 16 != PY_VERSION_HEX >> 16) return "the interpreter is not the version built for";
  at.current_frame = table->thread_state.current_frame;
  at.previous = table->interpreter_frame.previous;
  at.executable = table->interpreter_frame.executable;
  at.instr_ptr = table->interpreter_frame.instr_ptr;
  at.owner = table->interpreter_frame.owner;
  return NULL;
}

static inline const char* pointer_at(const char* base, size_t offset) {
  return *(const char* const*)(base + offset);
}

void plab_walk_frames(PyThreadState* thread, PlabFrames* frames) {
  plab_prefetch_frames(frames);
  int count = 0;
  const char* frame = pointer_at((const char*)thread, at.current_frame);
  for (; frame != NULL && count < PLAB_MAX_FRAMES; frame = pointer_at(frame, at.previous)) {
    if (frame[at.owner] >= kFirstShimOwner) continue;
    // 3.14 keeps two tag bits in the reference.
    const uintptr_t code = (uintptr_t)pointer_at(frame, at.executable) & ~(uintptr_t)3;
    if (code == 0) continue;
    frames->code[count] = (const PyCodeObject*)code;
    frames->offset[count] =
        (int32_t)(pointer_at(frame, at.instr_ptr) - ((const PyCodeObject*)code)->co_code_adaptive);
    frames->link[count] = frame + at.previous;
    ++count;
  }
  frames->count = count;
  frames->truncated = frame != NULL;
}

#else
typedef int plab_not_python_3_13;  // ISO C requires a declaration in every file
#endif
