// SPDX-License-Identifier: Apache-2.0
// A CPython newer than the frame layouts known here: recordings work, without Python stacks.
#include "recorder/python/frames.h"

#if PY_VERSION_HEX >= 0x030F0000

const char* plab_frames_unusable(void) {
  return "Python " PY_VERSION " is newer than the frame layouts known to this version of profiling_lab";
}

void plab_walk_frames(PyThreadState* thread, PlabFrames* frames) {
  (void)thread;
  frames->count = frames->truncated = 0;
}

PlabFrame plab_frame(const PlabFrames* frames, int i) {
  (void)frames, (void)i;
  const PlabFrame none = {NULL, 0};
  return none;
}

#else
typedef int plab_known_python;  // ISO C requires a declaration in every file
#endif
