// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/counters_module.h"

#include <pybind11/stl.h>

#include "recorder/cupti/counter_sampler.h"
#include "recorder/system/signal_mask.h"

namespace plab::recorder {
namespace {

namespace py = pybind11;

template <class Value>
py::bytes bytes_of(const std::vector<Value>& values) {
  return py::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value));
}

}  // namespace

void bind_counters(py::module_& m) {
  const auto made = [](const std::string& cupti, int device,
                       const std::vector<std::vector<std::string>>& choices, uint64_t period_ns,
                       uint32_t most_samples) {
    const py::gil_scoped_release released;
    const SignalsBlocked blocked;  // CUPTI starts threads of its own
    return std::make_unique<CounterSampler>(cupti, device, choices, period_ns, most_samples);
  };
  py::class_<CounterSampler>(m, "CounterSampler")
      .def(py::init(made), py::arg("cupti"), py::arg("device"), py::arg("choices"), py::arg("period_ns"),
           py::arg("most_samples"))
      .def_property_readonly("metrics", &CounterSampler::metrics)
      .def_property_readonly("overflows", &CounterSampler::overflows)
      .def("take",
           [](CounterSampler& sampler) {
             CounterSampler::Samples samples;
             {
               const py::gil_scoped_release released;
               samples = sampler.take();
             }
             return py::make_tuple(bytes_of(samples.start_ns), bytes_of(samples.end_ns),
                                   bytes_of(samples.values));
           })
      .def("stop", &CounterSampler::stop, py::call_guard<py::gil_scoped_release>());
}

}  // namespace plab::recorder
