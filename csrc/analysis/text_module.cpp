// SPDX-License-Identifier: Apache-2.0
// The part of _analysis that numbers texts: columns of millions of texts become numbers of the few that
// differ.
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/module.h"
#include "trace/cuda_calls.h"
#include "trace/operator_text.h"
#include "trace/text_table.h"

namespace plab::analysis {
namespace {

// Texts as Arrow keeps them: text i is bytes[offsets[i]:offsets[i + 1]].
class ArrowTexts {
 public:
  ArrowTexts(const In<int32_t>& offsets, const In<uint8_t>& bytes) : offsets_(offsets.data()) {
    if (offsets.ndim() != 1 || bytes.ndim() != 1 || offsets.size() == 0) {
      throw std::invalid_argument("offsets and bytes are columns, and there is one offset more than texts");
    }
    size_ = static_cast<size_t>(offsets.size()) - 1;
    bytes_ = {reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(bytes.size())};
    for (size_t i = 0; i < size_; ++i) {
      if (offsets_[i] < 0 || offsets_[i] > offsets_[i + 1])
        throw std::invalid_argument("offsets must not fall");
    }
    if (static_cast<size_t>(offsets_[size_]) > bytes_.size()) {
      throw std::invalid_argument("the last offset lies behind the bytes");
    }
  }

  size_t size() const { return size_; }
  std::string_view operator[](size_t i) const {
    return bytes_.substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
  }

 private:
  const int32_t* offsets_;
  std::string_view bytes_;
  size_t size_ = 0;
};

class TextCodes {
 public:
  py::array_t<int32_t> add(const In<int32_t>& offsets, const In<uint8_t>& bytes) {
    const ArrowTexts texts(offsets, bytes);
    std::vector<int32_t> number(texts.size());
    {
      py::gil_scoped_release release;
      for (size_t i = 0; i < texts.size(); ++i) number[i] = table_.number(texts[i]);
    }
    return give(std::move(number));
  }

  py::tuple add_operators(const In<int32_t>& offsets, const In<uint8_t>& bytes) {
    const ArrowTexts texts(offsets, bytes);
    std::vector<int32_t> number(texts.size());
    std::vector<int64_t> sequence(texts.size());
    {
      py::gil_scoped_release release;
      for (size_t i = 0; i < texts.size(); ++i) {
        const auto cut = trace::cut_operator_text(texts[i]);
        number[i] = table_.number(cut.name);
        sequence[i] = cut.sequence;
      }
    }
    return py::make_tuple(give(std::move(number)), give(std::move(sequence)));
  }

  py::list texts() const {
    py::list out;
    for (const auto& text : table_.texts()) out.append(py::bytes(text));
    return out;
  }

 private:
  trace::TextTable table_;
};

// The table, for tests: (name without cu or cuda, API, kind).
py::tuple kinds_by_name() {
  py::list out;
  for (const auto& row : trace::kCudaCalls) {
    out.append(py::make_tuple(std::string(row.name), std::string(1, row.api), static_cast<int>(row.kind)));
  }
  return py::tuple(out);
}

}  // namespace

void add_text_codes(py::module_& m) {
  py::class_<TextCodes>(m, "TextCodes")
      .def(py::init<>())
      .def("add", &TextCodes::add)
      .def("add_operators", &TextCodes::add_operators)
      .def("texts", &TextCodes::texts);
  m.def("cuda_call", [](std::string_view name) { return static_cast<int>(trace::cuda_call(name)); });
  m.attr("CUDA_CALLS") = kinds_by_name();
}

}  // namespace plab::analysis
