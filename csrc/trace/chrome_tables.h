// SPDX-License-Identifier: Apache-2.0
// The events of a torch.profiler file as columns, one table per kind. Texts are numbers into one TextTable.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "trace/columns.h"
#include "trace/text_table.h"

namespace plab::trace {

inline constexpr int64_t kNoNumber = INT64_MIN;  // an argument that is not there or is no 64-bit integer
inline constexpr int32_t kNoText = -1;

struct Slices {
  std::vector<int64_t> start_ns, end_ns;  // without the file's base time
  std::vector<int32_t> thread;            // row of ChromeTables::threads
  std::vector<int32_t> name;
};

struct GpuSlices : Slices {
  std::vector<uint8_t> kind;  // OperationKind of the Python side: kernel, copy, set
  std::vector<int64_t> device, stream, correlation, bytes;
  std::vector<int32_t> collective;  // what a communication kernel says about itself, as JSON
  std::vector<int32_t> launch;      // a kernel's grid, block and resources, as JSON
};

struct CallSlices : Slices {
  std::vector<int64_t> correlation;
};

struct OperatorSlices : Slices {
  std::vector<int64_t> sequence, forward_thread;
  std::vector<int32_t> call_stack;
  std::vector<int32_t> input_dims;  // as it stands in the file
};

struct PythonSlices : Slices {
  std::vector<int64_t> id, parent_id;
};

struct SyncSlices : Slices {
  std::vector<int32_t> kind;  // what was waited for, as text
  std::vector<int64_t> correlation;
};

// Ends of the arrows from a forward operator to its backward.
struct Flows {
  std::vector<int64_t> id, time_ns;
  std::vector<int32_t> thread;
  std::vector<uint8_t> is_end;
};

// Allocations of torch's own allocator on a GPU: a new size of what it holds.
struct MemoryNotes {
  std::vector<int64_t> time_ns, device, address, bytes, reserved, allocated;
  std::vector<int32_t> thread;
};

// What is a process and a thread to torch.profiler: for events of a GPU its ordinal and the stream.
struct ThreadKey {
  int64_t pid, tid;
  auto operator<=>(const ThreadKey&) const = default;
};

struct ChromeTables {
  GpuSlices operations;
  CallSlices calls;
  OperatorSlices operators;
  PythonSlices python;
  SyncSlices syncs;
  Slices overheads;
  Flows flows;
  MemoryNotes memory;
  TextTable texts;
  std::vector<ThreadKey> threads;
};

// Counts of malformed data, and how it was handled.
struct ChromeDamage {
  int64_t not_json = 0;        // values and texts in events: read as null, control characters as blanks
  int64_t wild_times = 0;      // events without a sensible time: left out
  int64_t without_phase = 0;   // left out
  int64_t times_as_text = 0;   // read as numbers
  int64_t huge_integers = 0;   // over 64 bits: read as not there
  int64_t broken_events = 0;   // no JSON: left out
  int64_t lost_bytes = 0;      // of these
  int64_t broken_root = 0;     // members of the root object that are no JSON
  int64_t cut = 0;             // 1 if the file ends before its JSON does
  int64_t more_documents = 0;  // 1 if another one follows, as in files written to twice: left out
};

}  // namespace plab::trace
