// SPDX-License-Identifier: Apache-2.0
// The Python stacks alone as a module, so that they can be built in seconds for every Python of a machine.
#include "recorder/python_stacks_module.h"

PYBIND11_MODULE(stacks_only, m) { plab::recorder::bind_python_stacks(m); }
