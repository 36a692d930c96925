// SPDX-License-Identifier: Apache-2.0
// What the parts of the module have in common. They are compiled as one file (CMakeLists.txt): most of the time goes
// to pybind11, and is then spent once.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

namespace plab::analysis {

namespace py = pybind11;

// No forcecast: an array of another type is a bug in our code and must not be converted silently.
template <class T>
using In = py::array_t<T, py::array::c_style>;

// The vector as a numpy column, without a copy.
template <class T>
py::array_t<T> give(std::vector<T>&& values) {
  auto* owner = new std::vector<T>(std::move(values));
  py::capsule release(owner, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(static_cast<py::ssize_t>(owner->size()), owner->data(), release);
}

void add_arrow_reader(py::module_& m);   // arrow_module.cpp
void add_chrome_reader(py::module_& m);  // chrome_module.cpp
void add_text_codes(py::module_& m);     // text_module.cpp

}  // namespace plab::analysis
