// SPDX-License-Identifier: Apache-2.0
// The line table of a code object: which line does the instruction at a byte offset belong to? Pure functions
// over the table's bytes, so that a line is known at the moment of capture, without the GIL.
#pragma once

#include <cstdint>
#include <string_view>

namespace plab::recorder::line_table {

inline constexpr int32_t kNoLine = 0;  // an instruction that the compiler generated: it has no line

// CPython 3.10 (PEP 626): pairs of bytes.
int32_t line_from_pairs(std::string_view table, int32_t first_line, int32_t offset);

// CPython 3.11 and later (PEP 657): entries of variable length that also hold columns.
int32_t line_from_locations(std::string_view table, int32_t first_line, int32_t offset);

}  // namespace plab::recorder::line_table
