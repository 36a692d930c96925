// SPDX-License-Identifier: Apache-2.0
// The columns every analysis works on: views of memory owned by others (usually numpy arrays).
#pragma once

#include <cstdint>
#include <span>

namespace plab::trace {

template <class T>
using Column = std::span<const T>;

// Times are integer nanoseconds on one clock. A track is whatever may not be mixed: a thread, a device, a
// stream; it is a small dense number, so that a sweep can sort by it.
struct Ranges {
  Column<int64_t> start_ns, end_ns;
  Column<int32_t> track;
  size_t size() const { return start_ns.size(); }
};

struct Moments {
  Column<int64_t> time_ns;
  Column<int32_t> track;
  size_t size() const { return time_ns.size(); }
};

// What identifies the call behind a GPU operation. A correlation id alone does not: two processes use the
// same ids.
struct Correlations {
  Column<int32_t> process;
  Column<int64_t> id;
  size_t size() const { return id.size(); }
};

// No row: the answer of every lookup that may find nothing.
inline constexpr int32_t kNone = -1;

// A sequence number that is not there (outside of backward, or not recorded); -1 is taken by nodes without a
// number.
inline constexpr int64_t kNoSequence = INT64_MIN;

}  // namespace plab::trace
