// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace plab::recorder {

// `_recorder.CounterSampler`.
void bind_counters(pybind11::module_& m);

}  // namespace plab::recorder
