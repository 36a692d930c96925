// SPDX-License-Identifier: Apache-2.0
#include "recorder/python/line_table.h"

#include <cstddef>

namespace plab::recorder::line_table {
namespace {

// The four kinds of location entry that are not "the same line, columns follow".
constexpr int kOneLineFirst = 10, kOneLineLast = 12, kNoColumns = 13, kLong = 14, kNone = 15;

// A signed number in groups of six bits, least first; the lowest bit of the number is its sign.
int32_t read_signed(std::string_view table, size_t at) {
  uint32_t bits = 0;
  for (unsigned shift = 0; at < table.size() && shift < 32; ++at, shift += 6) {
    const auto byte = static_cast<uint8_t>(table[at]);
    bits |= static_cast<uint32_t>(byte & 0x3F) << shift;
    if (!(byte & 0x40)) break;
  }
  const auto magnitude = static_cast<int32_t>(bits >> 1);
  return bits & 1 ? -magnitude : magnitude;
}

}  // namespace

int32_t line_from_pairs(std::string_view table, int32_t first_line, int32_t offset) {
  if (offset < 0) return first_line;
  int32_t line = first_line, end = 0;
  for (size_t at = 0; at + 1 < table.size(); at += 2) {
    const auto delta = static_cast<int8_t>(table[at + 1]);
    const bool has_line = delta != -128;
    if (has_line) line += delta;
    end += static_cast<uint8_t>(table[at]);
    if (offset < end) return has_line ? line : kNoLine;
  }
  return kNoLine;
}

int32_t line_from_locations(std::string_view table, int32_t first_line, int32_t offset) {
  if (offset < 0) return first_line;
  int32_t line = first_line, end = 0;
  for (size_t at = 0; at < table.size();) {
    const auto head = static_cast<uint8_t>(table[at]);
    const int kind = (head >> 3) & 15;
    if (kind == kLong || kind == kNoColumns) {
      line += read_signed(table, at + 1);
    } else if (kind >= kOneLineFirst && kind <= kOneLineLast) {
      line += kind - kOneLineFirst;
    }
    end += 2 * ((head & 7) + 1);  // the length counts code units of two bytes
    if (offset < end) return kind == kNone ? kNoLine : line;
    // Only the first byte of an entry has its top bit set.
    do ++at;
    while (at < table.size() && !(static_cast<uint8_t>(table[at]) & 0x80));
  }
  return kNoLine;
}

}  // namespace plab::recorder::line_table
