// SPDX-License-Identifier: Apache-2.0
// The walk itself, the same for all layouts. The file that includes it has defined, for its layout:
//   PlabLink                            the interpreter's frame
//   PlabLink first_frame(thread)        the innermost one, or NULL
//   PlabLink caller(frame)              the next one outwards, or NULL
//   int is_python(frame)                whether it runs code, and is no marker of the interpreter's
//   uintptr_t position(frame)           PlabFrames's
#include "recorder/python/frames.h"

// The chain is a linked list, of which the outer frames have not been touched since the last walk: one cache miss
// after the other. Most of them are where an earlier walk found them, so all are requested at once. A prefetch reads
// nothing: the frames may be gone.
static inline void prefetch_frames(const PlabFrames* earlier) {
#pragma GCC unroll 4
  for (int i = 0; i < earlier->count; ++i) __builtin_prefetch(earlier->frame[i]);
}

__attribute__((hot)) void plab_walk_frames(PyThreadState* thread, PlabFrames* frames) {
  prefetch_frames(frames);
  int count = 0;
  PlabLink frame = first_frame(thread);
  for (; frame != NULL && count < PLAB_MAX_FRAMES; frame = caller(frame)) {
    if (!is_python(frame)) continue;
    frames->position[count] = position(frame);
    frames->frame[count] = frame;
    ++count;
  }
  frames->count = count;
  frames->truncated = frame != NULL;
}
