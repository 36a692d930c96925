// SPDX-License-Identifier: Apache-2.0
// Walks over JSON as profilers really write it: with values that JSON does not know (N/A, NaN, -inf), control
// characters in texts, and an end in the middle of something. Values are found, not converted; nothing is
// copied and nothing recurses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace plab::trace {

enum class Step : uint8_t {
  kOk,
  kMore,  // the bytes end inside of the value: ask again with more of them
  kBad,   // this is no JSON
};

struct JsonValue {
  enum class Type : uint8_t { kAbsent, kNull, kTrue, kFalse, kNumber, kText, kObject, kArray, kNoJson };

  std::string_view raw;  // as it stands in the file, a text without its quotes
  Type type = Type::kAbsent;
  bool has_escapes = false;
  bool has_controls = false;  // characters that JSON wants escaped

  bool is_text() const { return type == Type::kText; }
};

// The bytes must be followed by kPadding readable bytes, the first of them 0.
class JsonCursor {
 public:
  static constexpr size_t kPadding = 16;
  static constexpr int kDeepest = 32;  // events nest six deep; a limit keeps damage from being read twice

  JsonCursor(const char* begin, const char* end) : at_(begin), end_(end) {}

  const char* at() const { return at_; }
  void go(const char* to) { at_ = to; }
  bool at_end() const { return at_ >= end_; }

  // The next character that is no blank; 0 at the end.
  char peek();
  // Steps over `wanted`: kBad if another character stands there.
  Step take(char wanted);
  Step value(JsonValue& out);
  // The name of a member of an object, with its colon.
  Step name(JsonValue& out);
  // After a member: kOk and `more` at a comma, kOk and not `more` at `}`.
  Step next_member(bool& more);

 private:
  Step text(JsonValue& out);
  Step container();
  Step bare(JsonValue& out);

  const char* at_;
  const char* end_;
};

// The characters of a text: escapes resolved, control characters as blanks. `scratch` holds what had to be
// changed.
std::string_view characters(const JsonValue& text, std::string& scratch);

}  // namespace plab::trace
