// SPDX-License-Identifier: Apache-2.0
// Call stacks from recorded function calls: each call knows its caller, equal stacks become one node of a
// tree.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

// The role of a call in the stack, by the name of the callee.
enum class FrameRole : uint8_t {
  kNone = 0,     // nothing: a built-in function
  kFrame = 1,    // a frame
  kModule = 2,   // no frame, but it names the module (class) whose `forward` follows
  kPassing = 3,  // a frame between a module's name and its `forward`
  kForward = 4,  // a frame that belongs to the module named before it
};

struct StackTree {
  std::vector<int32_t> stack;   // per call the node of its stack
  std::vector<int32_t> parent;  // per node; node 0 is the empty stack
  std::vector<int32_t> name;    // per node the name of its frame
  std::vector<int32_t> module;  // per node the name of the module it belongs to, or kNone
};

// Per call the row of the call with the id `parent_id`, kNone if there is none. If several calls have the
// same id, the last one counts.
std::vector<int32_t> rows_of_parents(trace::Column<int64_t> id, trace::Column<int64_t> parent_id);

// `parent` per call (a cycle of callers is cut where it is entered), `name` per call, `role` per name.
// O(calls).
StackTree fold_stacks(trace::Column<int32_t> parent, trace::Column<int32_t> name,
                      trace::Column<uint8_t> role);

}  // namespace plab::analysis
