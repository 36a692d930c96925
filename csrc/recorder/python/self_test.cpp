// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/self_test.h"

#include <Python.h>
#include <frameobject.h>  // 3.10 declares PyFrame_GetBack here

#include <memory>

#include "recorder/python/code.h"
#include "recorder/python/frames.h"
#include "recorder/python/stacks.h"

namespace plab::recorder {
namespace {

struct Drop {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Drop>;

constexpr char kFile[] = "<profiling_lab self-test>";

// The shapes that the interpreter's versions build differently: a generator, a property, a call back from C
// (sorted), a lambda, a comprehension, a statement over several lines.
constexpr char kProgram[] = R"(
def numbers():
    yield probe()

class Shape:
    @property
    def area(self):
        return sorted([2, 1], key=lambda n: (
            probe(),
            n))

def nest():
    next(numbers())
    Shape().area
    [probe() for _ in (1,)]

nest()
)";
constexpr int kProbes = 4;

struct Outcome {
  int agreed = 0;
  std::string difference;
};
Outcome* g_outcome = nullptr;

std::string describe(const PyCodeObject* code, int line) {
  return python_code::function(code) + " line " + std::to_string(line);
}

// Runs inside kProgram: walks the thread's frames and its frame objects in parallel and compares them.
PyObject* probe(PyObject*, PyObject*) {
  const auto walked = std::make_unique<PlabFrames>();
  plab_walk_frames(PyThreadState_Get(), walked.get());
  Owned frame(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  Py_XINCREF(frame.get());
  for (int i = 0; i < walked->count && frame; ++i) {
    auto* object = reinterpret_cast<PyFrameObject*>(frame.get());
    const Owned owned_code(reinterpret_cast<PyObject*>(PyFrame_GetCode(object)));
    const auto* code = reinterpret_cast<const PyCodeObject*>(owned_code.get());
    const int line = PyFrame_GetLineNumber(object);
    const PlabFrame found = plab_frame(walked.get(), i);
    const bool same_code = found.code == code;
    const bool ours = same_code && python_code::file(code) == kFile;
    if (!same_code || (ours && python_code::line(code, found.offset) != line)) {
      g_outcome->difference = "frame " + std::to_string(i) + " should be " + describe(code, line);
      Py_RETURN_NONE;
    }
    frame.reset(reinterpret_cast<PyObject*>(PyFrame_GetBack(object)));
  }
  if ((frame != nullptr) == (walked->truncated != 0)) {
    ++g_outcome->agreed;
  } else {
    g_outcome->difference = "the walk ended after " + std::to_string(walked->count) + " frames";
  }
  Py_RETURN_NONE;
}

PyMethodDef g_probe = {"probe", probe, METH_NOARGS, nullptr};

bool run_program() {
  const Owned code(Py_CompileString(kProgram, kFile, Py_file_input));
  const Owned globals(PyDict_New());
  const Owned function(PyCFunction_New(&g_probe, nullptr));
  const Owned name(PyUnicode_FromString("profiling_lab_self_test"));
  if (!code || !globals || !function || !name) return false;
  if (PyDict_SetItemString(globals.get(), "__builtins__", PyEval_GetBuiltins()) != 0) return false;
  if (PyDict_SetItemString(globals.get(), "__name__", name.get()) != 0) return false;
  if (PyDict_SetItemString(globals.get(), "probe", function.get()) != 0) return false;
  return Owned(PyEval_EvalCode(code.get(), globals.get(), globals.get())) != nullptr;
}

}  // namespace

bool python_stacks_self_test(std::string* why_not) {
  Outcome outcome;
  g_outcome = &outcome;
  const bool ran = run_program();
  g_outcome = nullptr;
  if (!ran) PyErr_Clear();
  if (ran && outcome.agreed == kProbes) return true;
  *why_not = std::string("Python's frames are not laid out as expected (Python ") + PY_VERSION +
             ", self-test: " +
             (!ran                         ? "the program failed"
              : outcome.difference.empty() ? "probes missing"
                                           : outcome.difference) +
             ")";
  return false;
}

}  // namespace plab::recorder
