// SPDX-License-Identifier: Apache-2.0
// The Python stacks alone as a module, so that they can be built in seconds for every Python of a machine.
#include "recorder/python_stacks.h"
#include "recorder/python_stacks_module.h"

PYBIND11_MODULE(stacks_only, m) { plab::recorder::bind_python_stacks(m); }

// For ctypes: a sub-interpreter cannot import the module, but its CUDA calls would get here all the same.
extern "C" __attribute__((visibility("default"))) uint32_t plab_test_capture() {
  return plab::recorder::python_stacks::capture();
}
