// SPDX-License-Identifier: Apache-2.0
// The Python stacks alone as a module, so that they can be built in seconds for every Python of a machine.
#include <pybind11/stl.h>

#include <tuple>
#include <vector>

#include "recorder/python/sampler.h"
#include "recorder/python/stacks.h"
#include "recorder/python/stacks_module.h"

namespace {

using plab::recorder::PythonSampler;

// (thread, stack) of every sample taken while `act` was called repeatedly, until there were `moments` of them.
std::vector<std::tuple<uint32_t, uint32_t>> sample(uint64_t period_ns, const pybind11::function& act,
                                                   uint64_t moments) {
  PythonSampler sampler;
  sampler.start(period_ns, [] { return true; });
  while (sampler.totals().moments < moments) act();
  {
    const pybind11::gil_scoped_release released;
    sampler.stop();
  }
  std::vector<std::tuple<uint32_t, uint32_t>> found;
  for (const auto& one : sampler.take()) found.emplace_back(one.thread, one.stack);
  return found;
}

}  // namespace

PYBIND11_MODULE(stacks_only, m) {
  plab::recorder::bind_python_stacks(m);
  m.def("sample", &sample, pybind11::arg("period_ns"), pybind11::arg("act"), pybind11::arg("moments"));
}

// For ctypes: a sub-interpreter cannot import the module, but its CUDA calls would get here all the same.
extern "C" __attribute__((visibility("default"))) uint32_t plab_test_capture() {
  return plab::recorder::python_stacks::capture();
}
