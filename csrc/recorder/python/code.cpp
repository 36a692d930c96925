// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/code.h"

#include <cstring>
#include <string_view>

#include "recorder/python/line_table.h"

namespace plab::recorder::python_code {
namespace {

std::string_view line_table(const PyCodeObject* code) {
  PyObject* table = code->co_linetable;
  return {PyBytes_AS_STRING(table), static_cast<size_t>(PyBytes_GET_SIZE(table))};
}

PyObject* name_of(const PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030B0000
  return code->co_qualname;
#else
  return code->co_name;
#endif
}

void append_utf8(std::string* out, uint32_t c) {
  if (c >= 0xDC80 && c < 0xDD00) {  // a byte of a file name that is not UTF-8, as Python keeps it
    constexpr const char* kDigits = "0123456789abcdef";
    out->append({'\\', 'x', kDigits[c >> 4 & 0xF], kDigits[c & 0xF]});
    return;
  }
  if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;  // no character at all
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->append({static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))});
  } else if (c < 0x10000) {
    out->append({static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3F)),
                 static_cast<char>(0x80 | (c & 0x3F))});
  } else {
    out->append({static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3F)),
                 static_cast<char>(0x80 | ((c >> 6) & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))});
  }
}

bool readable(PyObject* text) {
#if PY_VERSION_HEX < 0x030C0000
  return PyUnicode_IS_READY(text);  // making it ready would need the GIL; the compiler's names always are
#else
  return text != nullptr;
#endif
}

// The characters as they are stored, one to four bytes each.
std::string_view stored(PyObject* text) {
  if (!readable(text)) return "";
  return {static_cast<const char*>(PyUnicode_DATA(text)),
          static_cast<size_t>(PyUnicode_GET_LENGTH(text)) * PyUnicode_KIND(text)};
}

// PyUnicode_AsUTF8 would allocate and cache inside the object.
std::string utf8(PyObject* text) {
  if (!readable(text)) return "?";
  if (PyUnicode_IS_ASCII(text)) return std::string(stored(text));
  std::string out;
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); ++i)
    append_utf8(&out, PyUnicode_READ(kind, data, i));
  return out;
}

uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash(std::string_view bytes, uint64_t seed) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u, kOther = 0xD6E8FEB86659FD93u;
  uint64_t state = fold(seed ^ kOdd, bytes.size() ^ kOther);
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    state = fold(state ^ word, kOdd);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  return fold(state ^ rest, kOther);
}

}  // namespace

bool is_code(const PyCodeObject* code) {
  return reinterpret_cast<const PyObject*>(code)->ob_type == &PyCode_Type;
}

std::string file(const PyCodeObject* code) { return utf8(code->co_filename); }
std::string function(const PyCodeObject* code) { return utf8(name_of(code)); }
int32_t first_line(const PyCodeObject* code) { return code->co_firstlineno; }

int32_t line(const PyCodeObject* code, int32_t offset) {
#if PY_VERSION_HEX >= 0x030B0000
  return line_table::line_from_locations(line_table(code), code->co_firstlineno, offset);
#else
  return line_table::line_from_pairs(line_table(code), code->co_firstlineno, offset);
#endif
}

uint64_t content(const PyCodeObject* code) {
  const uint64_t names = hash(stored(name_of(code)), hash(stored(code->co_filename), 1));
  return hash(line_table(code), names + static_cast<uint32_t>(code->co_firstlineno));
}

}  // namespace plab::recorder::python_code
