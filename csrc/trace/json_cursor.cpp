// SPDX-License-Identifier: Apache-2.0
#include "trace/json_cursor.h"

#include <array>
#include <bit>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace plab::trace {
namespace {

constexpr bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// What a character may be in a value without quotes.
enum : uint8_t { kEndsBare = 1, kOfNumber = 2 };
constexpr std::array<uint8_t, 256> kBare = [] {
  std::array<uint8_t, 256> out{};
  for (const char c : std::string_view(",}]:\"{[ \n\r\t\0", 12)) out[static_cast<uint8_t>(c)] = kEndsBare;
  for (const char c : std::string_view("0123456789-+.eE")) out[static_cast<uint8_t>(c)] = kOfNumber;
  return out;
}();

// The next character from `at` on that a text must stop at: a quote, a backslash, a control character. The
// padding behind `end` holds one.
const char* special(const char* at) {
#if defined(__SSE2__)
  const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), last_control = _mm_set1_epi8(0x1f);
  // An unaligned load of 16 bytes stays inside of the padding: the byte at `end` stops the loop.
  for (;; at += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
    const __m128i marked =
        _mm_or_si128(control, _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, slash)));
    const auto mask = static_cast<unsigned>(_mm_movemask_epi8(marked));
    if (mask != 0) return at + std::countr_zero(mask);
  }
#else
  while (*at != '"' && *at != '\\' && !is_control(*at)) ++at;
  return at;
#endif
}

}  // namespace

char JsonCursor::peek() {
  while (is_blank(*at_)) ++at_;
  return at_ >= end_ ? '\0' : *at_;
}

Step JsonCursor::take(char wanted) {
  const char found = peek();
  if (at_ >= end_) return Step::kMore;
  if (found != wanted) return Step::kBad;
  ++at_;
  return Step::kOk;
}

Step JsonCursor::value(JsonValue& out) {
  const char first = peek();
  if (at_ >= end_) return Step::kMore;
  if (first == '"') return text(out);
  if (first != '{' && first != '[') return bare(out);
  const char* begin = at_;
  const Step step = container();
  out = {std::string_view(begin, at_ - begin),
         first == '{' ? JsonValue::Type::kObject : JsonValue::Type::kArray};
  return step;
}

Step JsonCursor::name(JsonValue& out) {
  if (peek() != '"') return at_ >= end_ ? Step::kMore : Step::kBad;
  const Step step = text(out);
  return step == Step::kOk ? take(':') : step;
}

Step JsonCursor::next_member(bool& more) {
  const char found = peek();
  if (at_ >= end_) return Step::kMore;
  if (found != ',' && found != '}') return Step::kBad;
  ++at_;
  more = found == ',';
  return Step::kOk;
}

Step JsonCursor::text(JsonValue& out) {
  const char* begin = ++at_;
  out = {{}, JsonValue::Type::kText};
  for (;;) {
    at_ = special(at_);
    if (at_ >= end_) return Step::kMore;
    if (*at_ == '"') break;
    if (*at_ == '\\') {
      out.has_escapes = true;
      if (++at_ >= end_) return Step::kMore;
    } else {
      out.has_controls = true;
    }
    ++at_;
  }
  out.raw = std::string_view(begin, at_ - begin);
  ++at_;
  return Step::kOk;
}

// Skips an object or a list: only texts and brackets matter.
Step JsonCursor::container() {
  uint64_t is_object = 0;  // one bit per level
  int depth = 0;
  JsonValue ignored;
  for (;; ++at_) {
    switch (*at_) {
      case '"': {
        if (const Step step = text(ignored); step != Step::kOk) return step;
        --at_;
        break;
      }
      case '{':
      case '[':
        if (++depth > kDeepest) return Step::kBad;
        is_object = is_object << 1 | (*at_ == '{');
        break;
      case '}':
      case ']':
        if ((is_object & 1) != (*at_ == '}')) return Step::kBad;
        is_object >>= 1;
        if (--depth == 0) {
          ++at_;
          return Step::kOk;
        }
        break;
      case '\0':
        return at_ >= end_ ? Step::kMore : Step::kBad;
      default:
        break;
    }
  }
}

// A number, a word, or what programs write where they have no number.
Step JsonCursor::bare(JsonValue& out) {
  const char* begin = at_;
  uint8_t number = kOfNumber;
  for (uint8_t c; ((c = kBare[static_cast<uint8_t>(*at_)]) & kEndsBare) == 0; ++at_) number &= c;
  if (at_ >= end_) return Step::kMore;
  if (at_ == begin) return Step::kBad;
  const std::string_view raw(begin, at_ - begin);
  const char last = raw.back();
  using enum JsonValue::Type;
  if (number != 0 && is_digit(last) && (is_digit(raw[0]) || raw[0] == '-')) {
    out = {raw, kNumber};
  } else {
    out = {raw, raw == "null" ? kNull : raw == "true" ? kTrue : raw == "false" ? kFalse : kNoJson};
  }
  return Step::kOk;
}

namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
            static_cast<char>(0x80 | (code & 0x3f))};
  } else {
    out += {static_cast<char>(0xf0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3f)),
            static_cast<char>(0x80 | (code >> 6 & 0x3f)), static_cast<char>(0x80 | (code & 0x3f))};
  }
}

constexpr uint32_t kReplacement = 0xfffd;

// The four digits of \uXXXX at `at`, or the replacement character if they are none.
uint32_t hex4(std::string_view raw, size_t at) {
  if (at + 4 > raw.size()) return kReplacement;
  uint32_t code = 0;
  for (const char c : raw.substr(at, 4)) {
    const char low = static_cast<char>(c | 0x20);
    if (is_digit(c)) {
      code = code << 4 | static_cast<uint32_t>(c - '0');
    } else if (low >= 'a' && low <= 'f') {
      code = code << 4 | static_cast<uint32_t>(low - 'a' + 10);
    } else {
      return kReplacement;
    }
  }
  return code;
}

// Resolves the escape whose backslash stands at `at`; returns where the text goes on.
size_t append_escape(std::string& out, std::string_view raw, size_t at) {
  const char kind = raw[at + 1];
  if (kind != 'u') {
    const std::string_view blanks = "nrtbf";
    out += blanks.find(kind) != std::string_view::npos ? ' ' : kind;
    return at + 2;
  }
  uint32_t code = hex4(raw, at + 2);
  at = std::min(at + 6, raw.size());
  if (code >= 0xd800 && code < 0xe000) {  // half of a pair: the other half must follow
    const bool pair = code < 0xdc00 && raw.substr(at, 2) == "\\u";
    const uint32_t low = pair ? hex4(raw, at + 2) : 0;
    if (low >= 0xdc00 && low < 0xe000) {
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
      at = std::min(at + 6, raw.size());
    } else {
      code = kReplacement;
    }
  }
  append_utf8(out, code < 0x20 ? ' ' : code);
  return at;
}

}  // namespace

std::string_view characters(const JsonValue& text, std::string& scratch) {
  if (!text.has_escapes && !text.has_controls) return text.raw;
  scratch.clear();
  for (size_t at = 0; at < text.raw.size();) {
    const char c = text.raw[at];
    if (c == '\\' && at + 1 < text.raw.size()) {
      at = append_escape(scratch, text.raw, at);
    } else {
      scratch += is_control(c) ? ' ' : c;
      ++at;
    }
  }
  return scratch;
}

}  // namespace plab::trace
