// SPDX-License-Identifier: Apache-2.0
// `_recorder.python_stacks`: the stacks by themselves, for tests and for `profiling-lab doctor`.
#include "recorder/python/stacks_module.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "recorder/python/code.h"
#include "recorder/python/stacks.h"

namespace plab::recorder {
namespace {

namespace py = pybind11;

using Frame = std::tuple<std::string, std::string, int32_t, int32_t>;  // file, function, line, first line

StackId capture_here(bool release_gil) {
  if (!release_gil) return python_stacks::capture();
  const py::gil_scoped_release released;
  return python_stacks::capture();
}

// As a thread that was made by C++ alone would see it.
StackId capture_in_native_thread() {
  const py::gil_scoped_release released;
  StackId stack = 0;
  std::thread([&] { stack = python_stacks::capture(); }).join();
  return stack;
}

std::vector<Frame> stack(StackId id) {
  if (id > python_stacks::node_count()) throw py::index_error("no stack has the id " + std::to_string(id));
  std::vector<Frame> frames;
  while (id != 0) {
    const StackNode node = python_stacks::node(id);
    frames.emplace_back(python_stacks::string(node.file), python_stacks::string(node.function), node.line,
                        node.first_line);
    id = node.parent;
  }
  return frames;
}

double nanoseconds_per_capture(int repeats) {
  const py::gil_scoped_release released;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) python_stacks::capture();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / repeats;
}

// How many captures fit into `seconds`, and the slowest of them in nanoseconds.
std::pair<int64_t, double> captures_for(double seconds) {
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  const py::gil_scoped_release released;
  Nanoseconds slowest{0};
  int64_t count = 0;
  for (const auto begin = Clock::now(); Nanoseconds(Clock::now() - begin).count() < seconds * 1e9; ++count) {
    const auto before = Clock::now();
    python_stacks::capture();
    slowest = std::max(slowest, Nanoseconds(Clock::now() - before));
  }
  return {count, slowest.count()};
}

int32_t line_at(const py::object& code, int32_t offset) {
  if (!PyCode_Check(code.ptr())) throw py::type_error("line_at wants a code object");
  return python_code::line(reinterpret_cast<const PyCodeObject*>(code.ptr()), offset);
}

void start() {
  std::string why_not;
  if (!python_stacks::start(&why_not)) throw std::runtime_error(why_not);
}

}  // namespace

void bind_python_stacks(py::module_& parent) {
  py::module_ m =
      parent.def_submodule("python_stacks", "Python frames of the calling thread, without the GIL.");
  m.attr("MAX_DEPTH") = python_stacks::kMaxDepth;
  m.def("start", &start, "Turn captures on; RuntimeError says why they cannot be.");
  m.def("stop", &python_stacks::stop, "Turn captures off; what was captured stays readable.");
  m.def("hide_callers", &python_stacks::hide_callers,
        "Leave the running frames out of this thread's stacks.");
  m.def("resolve", &python_stacks::resolve, "Keep running code objects alive (3.10 and 3.11).");
  m.def("capture_here", &capture_here, py::arg("release_gil") = true, "Id of the caller's stack; 0: none.");
  m.def("capture_in_native_thread", &capture_in_native_thread, "Capture on a thread Python never saw.");
  m.def("stack", &stack, py::arg("id"), "(file, function, line, first line) of each frame, innermost first.");
  m.def("node_count", &python_stacks::node_count, "How many different frames-with-callers were seen.");
  m.def("losses", [] {
    const python_stacks::Losses losses = python_stacks::losses();
    py::dict out;
    out["truncated"] = losses.truncated;
    out["other_interpreter"] = losses.other_interpreter;
    out["failed"] = losses.failed;
    return out;
  });
  m.def("nanoseconds_per_capture", &nanoseconds_per_capture, py::arg("repeats"), "Of the caller's stack.");
  m.def("captures_for", &captures_for, py::arg("seconds"), "(count, slowest in ns) without the GIL.");
  m.def("after_fork_child", &python_stacks::after_fork_child, "What the recorder calls in a forked child.");
  m.def("line_at", &line_at, py::arg("code"), py::arg("offset"),
        "Line of an instruction, by our own decoder.");
}

}  // namespace plab::recorder
