// SPDX-License-Identifier: Apache-2.0
// Link a launch on the autograd thread to its forward launch.
//
// Every autograd node takes a sequence number from a counter of its creating thread, just before its
// forward kernel is launched. A forward launch that sees the counter at p therefore belongs to node p-1, and
// a backward launch knows the node it evaluates. Replaying the launches in time order joins the two.
#pragma once

#include <vector>

#include "trace/columns.h"

namespace plab::analysis {

enum class Phase : uint8_t { kForward = 0, kBackward = 1 };  // forward: everything outside of backward

// How the link was found, the most reliable first. A chain of links is as reliable as its weakest part.
enum class Match : uint8_t {
  kOwn = 0,       // the launch's own stack
  kExact = 1,     // the launch that made the node's kernel
  kInferred = 2,  // the node was made between two launches; it is charged to the later one
  kNearest = 3,   // the node was made after the last launch before it was needed; charged to that launch
  kNoNumber = 4,  // the node has no sequence number: AccumulateGrad and its hooks, charged as the node before
  kUnknown = 5,   // the node is older than the recording, or backward is known but not of what
};

// Properties of a launch; the bits of LaunchProbes::traits.
enum Trait : uint8_t {
  kIsBackward = 1,        // runs in backward, although no node was recorded (a thread of the autograd engine)
  kOwnStackAnswers = 2,   // forward run again in backward (activation checkpointing), or a hook
  kStartsBackward = 4,    // prepares a backward pass (the first gradient); makes no node
  kNodeMadeLate = 8,      // its node was made after its forward kernel (in-place operations on views)
  kFramesInsideNode = 16  // Python code ran inside the node: own frames say more than nothing
};

struct LaunchProbes {
  trace::Column<int64_t> start_ns;
  trace::Column<int32_t> thread;         // whose counter `next_sequence` is; kNone when unknown
  trace::Column<int64_t> next_sequence;  // the number the next node would get; kNoSequence when unknown
  trace::Column<int64_t>
      node_sequence;  // the node being evaluated; kNoSequence outside of backward, -1 without number
  trace::Column<int32_t> node_thread;  // the thread that made that node, in the numbers of `thread`
  trace::Column<uint8_t> traits;
  size_t size() const { return start_ns.size(); }
};

struct Links {
  std::vector<uint8_t> phase;  // Phase
  std::vector<uint8_t> match;  // Match
  std::vector<int32_t>
      forward_row;  // the launch whose stack is the answer: itself in forward, kNone if there is none
};

Links link_by_counter(const LaunchProbes& launches);

// What an operator range evaluates in backward, if its recorder says so.
enum class Evaluates : uint8_t {
  kNothing = 0,  // forward, or not told
  kEngine = 1,   // the engine's own range around the evaluation of one node
  kNode = 2,     // the evaluation itself; its number is that of the node
};

// The ranges that emit_nvtx writes: `aten::mm, seq = 4` in forward, and in backward `evaluate_function:
// MmBackward0` around `MmBackward0, seq = 4`. The number identifies the forward range that created the node.
struct OperatorRanges {
  trace::Ranges ranges;              // track: thread
  trace::Column<int64_t> sequence;   // kNoSequence where the text has none
  trace::Column<uint8_t> evaluates;  // Evaluates
  trace::Column<int32_t> process;    // per range
};

struct RangeLinks {
  Links links;
  std::vector<int32_t> range;          // per launch: the innermost range around it
  std::vector<int32_t> forward_range;  // per launch: the operator that made the node; `range` in forward
  int64_t dropped_ranges = 0;          // see Containment
};

// `has_stack` says which launches have Python frames; such a launch represents its forward range.
RangeLinks link_by_ranges(const OperatorRanges& operators, const trace::Moments& launches,
                          trace::Column<uint8_t> has_stack, trace::Column<uint8_t> traits,
                          int64_t tolerance_ns);

}  // namespace plab::analysis
