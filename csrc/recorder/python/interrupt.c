// SPDX-License-Identifier: Apache-2.0
// Makes the main thread run its pending calls soon. Up to 3.12 Py_AddPendingCall sets the interpreter loop's flag
// only if the main thread itself calls it. Any thread can set that flag, and setting it needlessly costs one
// check.
#define Py_BUILD_CORE 1
#include <Python.h>

#include "recorder/python/frames.h"

#if PY_VERSION_HEX < 0x030D0000

#include <internal/pycore_interp.h>

void plab_interrupt_main_thread(void) {
  _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
}

#else
void plab_interrupt_main_thread(void) {}
#endif
