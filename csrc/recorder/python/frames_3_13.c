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

typedef const char* PlabLink;

static inline PlabLink first_frame(PyThreadState* thread) {
  return pointer_at((const char*)thread, at.current_frame);
}
static inline PlabLink caller(PlabLink frame) { return pointer_at(frame, at.previous); }
// 3.14 keeps two tag bits in the reference.
static inline const PyCodeObject* code_of(PlabLink frame) {
  return (const PyCodeObject*)((uintptr_t)pointer_at(frame, at.executable) & ~(uintptr_t)3);
}
static inline int is_python(PlabLink frame) {
  return frame[at.owner] < kFirstShimOwner && code_of(frame) != NULL;
}
static inline uintptr_t position(PlabLink frame) {
  return (uintptr_t)pointer_at(frame, at.instr_ptr);  // in its code object
}

#include "recorder/python/frames_walk.h"

PlabFrame plab_frame(const PlabFrames* frames, int i) {
  const char* frame = frames->frame[i];
  const PyCodeObject* code = code_of(frame);
  const PlabFrame found = {code, (int32_t)(pointer_at(frame, at.instr_ptr) - code->co_code_adaptive)};
  return found;
}

#else
typedef int plab_not_python_3_13;  // ISO C requires a declaration in every file
#endif
