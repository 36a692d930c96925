// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace plab::recorder {

// Adds the submodule `python_stacks`.
void bind_python_stacks(pybind11::module_& parent);

}  // namespace plab::recorder
