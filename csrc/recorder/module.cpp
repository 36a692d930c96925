// SPDX-License-Identifier: Apache-2.0
// _recorder: the Python interface of the recorder (profiling_lab/_recorder.pyi describes it).
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "recorder/cupti/counters_module.h"
#include "recorder/cupti/kernel_names.h"
#include "recorder/cupti/stream_captures.h"
#include "recorder/nvtx/ranges.h"
#include "recorder/python/host_events.h"
#include "recorder/python/sampler.h"
#include "recorder/python/stacks_module.h"
#include "recorder/session.h"
#include "recorder/spool/reader.h"
#include "recorder/torch/autograd_link.h"

namespace py = pybind11;
using namespace plab::recorder;

namespace {

// File names are bytes. Python keeps them as text, with a lone surrogate for each byte that is not UTF-8. The file
// system gets the original bytes. Text for people, here and in the recording, shows such a byte as \xNN, because it
// must be UTF-8.
std::string path_of(const py::handle& path) {
  return py::module_::import("os").attr("fsencode")(path).cast<std::string>();
}

py::str readable(const std::string& bytes) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<py::ssize_t>(bytes.size()), "backslashreplace"));
}

using Meta = std::map<std::string, std::string>;

Meta meta_of(const py::dict& texts) {
  Meta meta;
  for (const auto& [name, text] : texts) {
    const py::object bytes = text.attr("encode")("utf-8", "surrogateescape");
    meta[name.cast<std::string>()] = readable(bytes.cast<std::string>()).cast<std::string>();
  }
  return meta;
}

// A message about a file contains the file's name.
void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const py::error_already_set&) {
    throw;  // Python's own; a runtime_error in pybind11's older versions
  } catch (const py::builtin_exception&) {
    throw;  // index_error and the like know their Python type
  } catch (const std::runtime_error& error) {
    PyErr_SetObject(PyExc_RuntimeError, readable(error.what()).ptr());
  }
}

py::dict start(const py::kwargs& wanted) {
  StartOptions options;
  for (const auto& [key, value] : wanted) {
    const auto name = key.cast<std::string>();
    if (name == "spool_path")
      options.spool_path = path_of(value);
    else if (name == "spool_file")
      options.spool_file = value.cast<int>();
    else if (name == "cupti_override")
      options.cupti.override_path = path_of(value);
    else if (name == "cupti_candidates")
      for (const py::handle path : value) options.cupti.candidates.push_back(path_of(path));
    else if (name == "gpu")
      options.gpu = value.cast<bool>();
    else if (name == "python_stacks")
      options.python_stacks = value.cast<bool>();
    else if (name == "nvtx")
      options.nvtx = value.cast<bool>();
    else if (name == "buffer_bytes")
      options.cupti.buffer_bytes = value.cast<uint32_t>();
    else if (name == "buffers_ahead")
      options.cupti.buffers_ahead = value.cast<uint32_t>();
    else if (name == "buffers_most")
      options.cupti.buffers_most = value.cast<uint32_t>();
    else if (name == "graph_nodes")
      options.cupti.graph_nodes = value.cast<bool>();
    else if (name == "paused")
      options.paused = value.cast<bool>();
    else if (name == "sample_period_ns")
      options.sample_period_ns = value.cast<uint64_t>();
    else if (name == "most_bytes")
      options.most_bytes = value.cast<uint64_t>();
    else if (name == "drain_period_ms")
      options.drain_period_ms = value.cast<uint32_t>();
    else if (name == "flush_period_ms")
      options.flush_period_ms = value.cast<uint32_t>();
    else
      throw py::type_error("start() has no option '" + name + "'");
  }
  const StartResult result = Session::instance().start(options);
  if (!result.started) throw std::runtime_error(result.error);
  py::dict out;
  out["gpu"] = result.gpu;
  out["gpu_reason"] = result.gpu_reason;
  out["stack_reason"] = result.stack_reason;
  return out;
}

Meta stop(const py::dict& meta) {
  std::string why;
  {
    const py::gil_scoped_release released;
    why = Session::instance().halt();
  }
  if (!why.empty()) throw std::runtime_error(why);
  return Session::instance().finish(meta_of(meta));
}

// Ranges end on any thread, without the GIL. So Python's main thread is asked to call the function soon. A full queue
// of such requests loses nothing: the next request that runs handles all of them.
py::object* range_watcher = nullptr;  // never destroyed: the interpreter may be finalised before us
std::atomic<int> ranges_ended{0};

int serve_range_watcher(void*) {
  for (int left = ranges_ended.exchange(0); left > 0 && range_watcher; --left) {
    const py::object call = *range_watcher;  // it may give the watching up
    if (!py::reinterpret_steal<py::object>(PyObject_CallNoArgs(call.ptr()))) return -1;
  }
  return 0;
}

void watch_ranges(const std::string& name, const py::object& call) {
  nvtx_ranges::watch("", nullptr);
  delete std::exchange(range_watcher, nullptr);
  if (call.is_none()) return;
  range_watcher = new py::object(call);
  nvtx_ranges::watch(name, [] {
    ++ranges_ended;
    Py_AddPendingCall(&serve_range_watcher, nullptr);
  });
}

std::string calibrate(const std::vector<std::tuple<uintptr_t, uint64_t, uint64_t>>& nodes) {
  std::vector<autograd_link::Sample> samples;
  for (const auto& [object, sequence, thread] : nodes) samples.push_back({object, sequence, thread});
  return autograd_link::calibrate(samples);
}

std::string class_of_call(const std::string& name) {
  using launch_callbacks::CallClass;
  switch (launch_callbacks::classify(name)) {
    case CallClass::kLaunch:
      return "launch";
    case CallClass::kGraph:
      return "graph";
    case CallClass::kCopy:
      return "copy";
    case CallClass::kSet:
      return "set";
    case CallClass::kSync:
      return "sync";
    case CallClass::kMemory:
      return "memory";
    case CallClass::kWait:
      return "wait";
    case CallClass::kNone:
      break;
  }
  return "none";
}

using NodeFacts = std::tuple<uintptr_t, uint64_t, uint64_t>;

bool calibrate_functions(const NodeFacts& user, const NodeFacts& function) {
  const auto sample = [](const NodeFacts& node) { return std::make_from_tuple<autograd_link::Sample>(node); };
  return autograd_link::calibrate_functions(sample(user), sample(function));
}

// The columns of a record as numpy names them. It imports numpy only when needed, because the module is
// loaded before the user's script runs.
template <class Record>
py::dtype dtype_of() {
  py::list names, formats, offsets;
  Record::each_field([&]<class Type>(const std::string& name, size_t offset, std::type_identity<Type>) {
    if (name == "pad") return;
    names.append(name);
    formats.append(py::dtype::of<Type>());
    offsets.append(offset);
  });
  return py::dtype(names, formats, offsets, sizeof(Record));
}

// The records of one kind as a structured array that owns their memory.
template <class Record>
py::array records(spool::Contents& contents) {
  auto owned = std::make_unique<std::vector<char>>(std::move(contents.records[spool::kKindOf<Record>]));
  const auto count = static_cast<py::ssize_t>(owned->size() / sizeof(Record));
  const char* const first = owned->data();
  const py::capsule owner(owned.get(), [](void* memory) { delete static_cast<std::vector<char>*>(memory); });
  owned.release();
  return py::array(dtype_of<Record>(), count, first, owner);
}

py::str decoded(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"));
}

py::dict read_spool(const py::handle& name, int file) {
  const std::string path = path_of(name);
  spool::Contents contents;
  {
    const py::gil_scoped_release released;
    contents = file < 0 ? spool::read(path) : spool::read(file, path);
  }
  py::list strings;
  for (const std::string& text : contents.strings) strings.append(decoded(text));
  py::dict meta;
  for (const auto& [name, value] : contents.meta) meta[decoded(name)] = decoded(value);
  py::dict out;
  out["process"] = contents.header.process;
  out["start_ns"] = contents.header.start_ns;
  out["strings"] = strings;
  out["meta"] = meta;
  out["unreadable_bytes"] = contents.unreadable_bytes;
  out["unreadable_places"] = contents.unreadable_places;
#define PLAB_PUT(number, Record, key) out[key] = records<spool::Record>(contents);
  PLAB_SPOOL_RECORDS(PLAB_PUT)
#undef PLAB_PUT
  return out;
}

// gc.callbacks: "start" or "stop", and a dict with the generation.
void collection_event(const std::string& phase, const py::dict& info) {
  if (phase == "start") return host_events::began(host_events::Kind::kCollection);
  const auto generation = py::str(info["generation"]).cast<std::string>();
  host_events::ended(host_events::Kind::kCollection, "garbage collection, generation " + generation);
}

}  // namespace

PYBIND11_MODULE(_recorder, m) {
  m.doc() = "Records CUDA activity, Python stacks and NVTX ranges of the running process.";
  m.attr("VERSION") = PLAB_VERSION;
  py::register_local_exception_translator(&translate);
  bind_counters(m);
  bind_python_stacks(m);
  m.def("start", &start);
  m.def("stop", &stop, py::arg("meta"));
  m.def(
      "add_meta", [](const py::dict& meta) { Session::instance().add_meta(meta_of(meta)); }, py::arg("meta"));
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def(
      "warm_up", [] { return Session::instance().warm_up(); }, without_gil);
  m.def(
      "open_window", [](int64_t step) { return Session::instance().open_window(step); }, py::arg("step") = -1,
      without_gil);
  m.def(
      "close_window", [] { return Session::instance().close_window(); }, without_gil);
  m.def(
      "pause", [] { return Session::instance().pause(); }, without_gil);
  m.def("captures_under_way", &stream_captures::under_way);
  m.def("expect_nvtx", &nvtx_ranges::expect_recording);
  m.def("watch_ranges", &watch_ranges, py::arg("name"), py::arg("call"));
  m.def("recording", [] { return Session::instance().recording(); });
  m.def("status", [] { return Session::instance().statistics(); });
  // Called by gc.callbacks and torch._dynamo.callback: C functions, so that no frame of ours is in the stack.
  m.def("collection_event", &collection_event, py::arg("phase"), py::arg("info"));
  m.def(
      "compilation_began", [](const py::object&) { host_events::began(host_events::Kind::kCompilation); },
      py::arg("args") = py::none());
  m.def(
      "compilation_ended",
      [](const py::object&) { host_events::ended(host_events::Kind::kCompilation, "torch.compile"); },
      py::arg("args") = py::none());
  // For launchers, when the script is over: a C function, so that no frame of ours is sampled before it.
  m.def("leave_out_this_thread", &PythonSampler::leave_out_this_thread);
  m.def("attach_autograd", &autograd_link::attach);
  m.def("detach_autograd", &autograd_link::detach);
  m.def("give_up_autograd", &autograd_link::give_up, py::arg("reason"));
  m.def("logical_thread", &autograd_link::current_thread);
  m.def("calibrate", &calibrate, py::arg("nodes"));
  m.def("calibrate_functions", &calibrate_functions, py::arg("user"), py::arg("function"));
  m.def("autograd_state", &autograd_link::state);
  m.def("read_spool", &read_spool, py::arg("path"), py::arg("file") = -1);
  m.def("duplicate_spool", [] { return Session::instance().duplicate_spool(); });
  m.def("classify", &class_of_call, py::arg("name"));
  m.def("demangle", &demangle, py::arg("name"));
  m.def("short_name", &short_name, py::arg("demangled"));
}
