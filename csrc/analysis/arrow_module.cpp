// SPDX-License-Identifier: Apache-2.0
// The part of _analysis that reads an Arrow stream, as a database driver hands it over. pyarrow could, but importing
// it takes longer than reading a small trace.
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "analysis/module.h"

extern "C" {
// https://arrow.apache.org/docs/format/CDataInterface.html
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}

namespace plab::analysis {
namespace {

// A struct of the interface: released once, by whoever holds it last.
template <class T>
struct Held : T {
  Held() : T{} {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (this->release != nullptr) this->release(this);
  }
};

// Rows of a table. Its columns are views of its memory.
class ArrowBatch {
 public:
  ArrowBatch(std::shared_ptr<Held<ArrowSchema>> schema, std::unique_ptr<Held<ArrowArray>> rows)
      : schema_(std::move(schema)), rows_(std::move(rows)) {
    if (rows_->n_children != schema_->n_children)
      throw std::runtime_error("a batch has not the columns of its stream");
  }

  int64_t width() const { return rows_->n_children; }

  // Of one type and without a NULL; else None.
  py::object integers(int64_t column) const {
    const ArrowArray& values = at(column);
    if (format(column) != "l" || has_null(values)) return py::none();
    return part(static_cast<const int64_t*>(values.buffers[1]), values.offset, values.length);
  }

  // Offsets and bytes of a BLOB column without a NULL; else None.
  py::object texts(int64_t column) const {
    const ArrowArray& values = at(column);
    if (format(column) != "z" || has_null(values)) return py::none();
    const auto* offsets = static_cast<const int32_t*>(values.buffers[1]);
    if (offsets == nullptr || values.length == 0) {
      return py::make_tuple(give(std::vector<int32_t>{0}), give(std::vector<uint8_t>{}));
    }
    const int64_t end = offsets[values.offset + values.length];
    return py::make_tuple(part(offsets, values.offset, values.length + 1),
                          part(static_cast<const uint8_t*>(values.buffers[2]), 0, end));
  }

  // As Python's int, float, bytes, or None; texts as bytes, because they may be invalid UTF-8.
  py::list values(int64_t column) const {
    const ArrowArray& values = at(column);
    const std::string_view type = format(column);
    py::list out;
    for (int64_t i = values.offset; i < values.offset + values.length; ++i) {
      if (is_null(values, i)) {
        out.append(py::none());
      } else if (type == "l") {
        out.append(static_cast<const int64_t*>(values.buffers[1])[i]);
      } else if (type == "g") {
        out.append(static_cast<const double*>(values.buffers[1])[i]);
      } else if (type == "u" || type == "z") {
        const auto* offsets = static_cast<const int32_t*>(values.buffers[1]);
        const char* bytes = static_cast<const char*>(values.buffers[2]);
        out.append(py::bytes(bytes == nullptr ? "" : bytes + offsets[i], offsets[i + 1] - offsets[i]));
      } else {
        throw std::runtime_error("a column has the type '" + std::string(type) +
                                 "', which no database of ours has");
      }
    }
    return out;
  }

 private:
  const ArrowArray& at(int64_t column) const {
    if (column < 0 || column >= width())
      throw py::index_error("there is no column " + std::to_string(column));
    return *rows_->children[column];
  }

  std::string_view format(int64_t column) const { return schema_->children[column]->format; }

  static bool is_null(const ArrowArray& values, int64_t row) {
    if (values.n_buffers == 0) return true;  // the type without values
    const auto* valid = static_cast<const uint8_t*>(values.buffers[0]);
    return valid != nullptr && (valid[row / 8] >> (row % 8) & 1) == 0;
  }

  static bool has_null(const ArrowArray& values) {
    if (values.null_count >= 0) return values.null_count > 0;
    for (int64_t i = values.offset; i < values.offset + values.length; ++i) {
      if (is_null(values, i)) return true;
    }
    return false;
  }

  template <class T>
  py::array_t<T> part(const T* first, int64_t offset, int64_t length) const {
    if (first == nullptr || length == 0) return give(std::vector<T>{});
    auto* owner = new std::shared_ptr<Held<ArrowArray>>(rows_);
    py::capsule release(owner, [](void* p) { delete static_cast<std::shared_ptr<Held<ArrowArray>>*>(p); });
    return py::array_t<T>(static_cast<py::ssize_t>(length), first + offset, release);
  }

  std::shared_ptr<Held<ArrowSchema>> schema_;
  std::shared_ptr<Held<ArrowArray>> rows_;
};

class ArrowStream {
 public:
  explicit ArrowStream(const py::object& driver) {
    py::object capsule = driver.attr("__arrow_c_stream__")();
    auto* given = static_cast<ArrowArrayStream*>(PyCapsule_GetPointer(capsule.ptr(), "arrow_array_stream"));
    if (given == nullptr) throw py::error_already_set();
    static_cast<ArrowArrayStream&>(stream_) = *given;
    given->release = nullptr;  // moved
    check(unlocked([&] { return stream_.get_schema(&stream_, schema_.get()); }));
  }

  ArrowBatch next() {
    auto rows = std::make_unique<Held<ArrowArray>>();
    check(unlocked([&] { return stream_.get_next(&stream_, rows.get()); }));
    if (rows->release == nullptr) throw py::stop_iteration();
    return {schema_, std::move(rows)};
  }

 private:
  template <class Work>
  static int unlocked(Work work) {
    py::gil_scoped_release release;
    return work();
  }

  void check(int failed) {
    if (failed == 0) return;
    const char* why = stream_.get_last_error(&stream_);
    throw std::runtime_error(why == nullptr ? "error " + std::to_string(failed) : why);
  }

  Held<ArrowArrayStream> stream_;
  std::shared_ptr<Held<ArrowSchema>> schema_ = std::make_shared<Held<ArrowSchema>>();
};

}  // namespace

void add_arrow_reader(py::module_& m) {
  py::class_<ArrowBatch>(m, "ArrowBatch")
      .def_property_readonly("width", &ArrowBatch::width)
      .def("integers", &ArrowBatch::integers)
      .def("texts", &ArrowBatch::texts)
      .def("values", &ArrowBatch::values);
  py::class_<ArrowStream>(m, "ArrowStream")
      .def(py::init<const py::object&>())
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &ArrowStream::next);
}

}  // namespace plab::analysis
