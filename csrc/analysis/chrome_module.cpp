// SPDX-License-Identifier: Apache-2.0
// The part of _analysis that reads torch.profiler's JSON: the reader as a Python object, its tables as numpy
// columns.
#include <optional>
#include <stdexcept>
#include <string>

#include "analysis/module.h"
#include "analysis/stack_tree.h"
#include "trace/chrome_reader.h"

namespace plab::analysis {
namespace {

using namespace py::literals;

template <class T>
py::array_t<T> give_fitted(std::vector<T>&& values) {
  values.shrink_to_fit();
  return give(std::move(values));
}

// Text of a file, which may not be valid UTF-8.
py::str decoded(std::string_view text, int64_t& broken) {
  PyObject* exact = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "strict");
  if (exact != nullptr) return py::reinterpret_steal<py::str>(exact);
  PyErr_Clear();
  ++broken;
  PyObject* replaced = PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace");
  if (replaced == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(replaced);
}

py::dict columns(trace::Slices&& table) {
  return py::dict("start_ns"_a = give_fitted(std::move(table.start_ns)),
                  "end_ns"_a = give_fitted(std::move(table.end_ns)),
                  "thread"_a = give_fitted(std::move(table.thread)),
                  "name"_a = give_fitted(std::move(table.name)));
}

py::dict take_table(trace::ChromeReader& reader, const std::string& which) {
  trace::ChromeTables& tables = reader.tables();
  py::dict out;
  if (which == "operations") {
    auto& table = tables.operations;
    out = columns(std::move(table));
    out["kind"] = give_fitted(std::move(table.kind));
    out["device"] = give_fitted(std::move(table.device));
    out["stream"] = give_fitted(std::move(table.stream));
    out["correlation"] = give_fitted(std::move(table.correlation));
    out["bytes"] = give_fitted(std::move(table.bytes));
    out["collective"] = give_fitted(std::move(table.collective));
    out["launch"] = give_fitted(std::move(table.launch));
  } else if (which == "calls") {
    out = columns(std::move(tables.calls));
    out["correlation"] = give_fitted(std::move(tables.calls.correlation));
  } else if (which == "operators") {
    auto& table = tables.operators;
    out = columns(std::move(table));
    out["sequence"] = give_fitted(std::move(table.sequence));
    out["forward_thread"] = give_fitted(std::move(table.forward_thread));
    out["call_stack"] = give_fitted(std::move(table.call_stack));
    out["input_dims"] = give_fitted(std::move(table.input_dims));
  } else if (which == "python") {
    out = columns(std::move(tables.python));
    out["id"] = give_fitted(std::move(tables.python.id));
    out["parent_id"] = give_fitted(std::move(tables.python.parent_id));
  } else if (which == "syncs") {
    out = columns(std::move(tables.syncs));
    out["kind"] = give_fitted(std::move(tables.syncs.kind));
    out["correlation"] = give_fitted(std::move(tables.syncs.correlation));
  } else if (which == "overheads") {
    out = columns(std::move(tables.overheads));
  } else if (which == "flows") {
    auto& table = tables.flows;
    out["id"] = give_fitted(std::move(table.id));
    out["time_ns"] = give_fitted(std::move(table.time_ns));
    out["thread"] = give_fitted(std::move(table.thread));
    out["is_end"] = give_fitted(std::move(table.is_end));
  } else if (which == "memory") {
    auto& table = tables.memory;
    out["time_ns"] = give_fitted(std::move(table.time_ns));
    out["device"] = give_fitted(std::move(table.device));
    out["bytes"] = give_fitted(std::move(table.bytes));
    out["reserved"] = give_fitted(std::move(table.reserved));
    out["allocated"] = give_fitted(std::move(table.allocated));
    out["address"] = give_fitted(std::move(table.address));
    out["thread"] = give_fitted(std::move(table.thread));
  } else {
    throw std::invalid_argument("there is no table " + which);
  }
  return out;
}

py::tuple texts(const trace::ChromeReader& reader) {
  const auto& all = reader.tables().texts.texts();
  py::tuple out(all.size());
  int64_t broken = 0;
  size_t i = 0;
  for (const std::string& text : all) out[i++] = decoded(text, broken);
  return py::make_tuple(out, broken);
}

py::tuple threads(const trace::ChromeReader& reader) {
  std::vector<int64_t> pid, tid;
  for (const trace::ThreadKey& key : reader.tables().threads) {
    pid.push_back(key.pid);
    tid.push_back(key.tid);
  }
  return py::make_tuple(give_fitted(std::move(pid)), give_fitted(std::move(tid)));
}

py::dict root(const trace::ChromeReader& reader) {
  py::dict out;
  int64_t broken = 0;
  for (const auto& [name, json] : reader.root()) out[decoded(name, broken)] = py::bytes(json);
  return out;
}

py::dict damage(const trace::ChromeReader& reader) {
  const trace::ChromeDamage& found = reader.damage();
  return py::dict("not_json"_a = found.not_json, "wild_times"_a = found.wild_times,
                  "without_phase"_a = found.without_phase, "times_as_text"_a = found.times_as_text,
                  "huge_integers"_a = found.huge_integers, "broken_events"_a = found.broken_events,
                  "lost_bytes"_a = found.lost_bytes, "broken_root"_a = found.broken_root, "cut"_a = found.cut,
                  "more_documents"_a = found.more_documents);
}

py::dict others(const trace::ChromeReader& reader) {
  py::dict out;
  int64_t broken = 0;
  for (const auto& [category, events] : reader.others()) out[decoded(category, broken)] = events;
  return out;
}

template <class T>
using In = py::array_t<T, py::array::c_style>;

template <class T>
trace::Column<T> view(const In<T>& array) {
  if (array.ndim() != 1) throw std::invalid_argument("a column is one-dimensional");
  return {array.data(), static_cast<size_t>(array.size())};
}

py::array_t<int32_t> parents_by_id(const In<int64_t>& id, const In<int64_t>& parent_id) {
  if (id.size() != parent_id.size()) throw std::invalid_argument("columns of one table differ in length");
  const auto ids = view(id), parents = view(parent_id);
  std::vector<int32_t> rows;
  {
    py::gil_scoped_release release;
    rows = rows_of_parents(ids, parents);
  }
  return give_fitted(std::move(rows));
}

py::tuple folded(const In<int32_t>& parent, const In<int32_t>& name, const In<uint8_t>& role) {
  if (parent.size() != name.size()) throw std::invalid_argument("columns of one table differ in length");
  const auto parents = view(parent), names = view(name);
  const auto roles = view(role);
  for (const int32_t row : parents) {
    if (row < trace::kNone || row >= parent.size()) throw std::invalid_argument("a parent is no row");
  }
  for (const int32_t row : names) {
    if (row < 0 || row >= role.size()) throw std::invalid_argument("a name has no role");
  }
  StackTree tree;
  {
    py::gil_scoped_release release;
    tree = fold_stacks(parents, names, roles);
  }
  return py::make_tuple(give_fitted(std::move(tree.stack)), give_fitted(std::move(tree.parent)),
                        give_fitted(std::move(tree.name)), give_fitted(std::move(tree.module)));
}

}  // namespace

void add_chrome_reader(py::module_& m) {
  py::class_<trace::ChromeReader>(m, "ChromeReader")
      .def(py::init<>())
      .def("feed",
           [](trace::ChromeReader& reader, const py::bytes& bytes) {
             const std::string_view view = bytes;
             py::gil_scoped_release release;
             reader.feed(view);
           })
      .def("finish",
           [](trace::ChromeReader& reader) {
             py::gil_scoped_release release;
             reader.finish();
           })
      .def("take_table", &take_table)
      .def("texts", &texts)
      .def("threads", &threads)
      .def("root", &root)
      .def("damage", &damage)
      .def("others", &others)
      .def_property_readonly("found_events", &trace::ChromeReader::found_events);
  m.def("parents_by_id", &parents_by_id);
  m.def("fold_stacks", &folded);
}

}  // namespace plab::analysis
