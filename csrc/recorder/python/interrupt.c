// SPDX-License-Identifier: Apache-2.0
// Makes the main thread look at its pending calls soon. Up to 3.12 Py_AddPendingCall tells it so only when
// the main thread itself asks; the flag that its loop reads can be set by any thread, and a flag set in vain
// costs one look.
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
