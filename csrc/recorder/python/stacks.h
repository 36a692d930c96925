// SPDX-License-Identifier: Apache-2.0
// The Python frames of the calling thread, taken without the GIL.
//
// A CUDA call runs inside C code: its thread's own frame chain cannot change under it, so the chain can be
// walked while other threads hold the interpreter lock. Taking that lock here could deadlock (a thread that
// holds it may wait for an allocator lock held by the launching thread), so capture() never does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace plab::recorder {

// A node of the trie of all stacks seen: the innermost frame of a stack, `parent` being its caller's node.
using StackId = uint32_t;  // 0: no Python frames

class ThreadStacks;

struct StackNode {
  uint32_t parent;     // the caller's node, 0 for an outermost frame
  uint32_t file;       // index for string()
  uint32_t function;   // index for string(); the qualified name (3.10: the plain name)
  int32_t line;        // the executing line; 0: the instruction has none
  int32_t first_line;  // the line of the `def`
  uint32_t depth;      // 1 for an outermost frame
};

namespace python_stacks {

// Deeper stacks keep their innermost frames; an extra outermost frame named "<truncated>" says so.
inline constexpr uint32_t kMaxDepth = 512;

// GIL held. Compares the walk with sys._getframe on known shapes and watches for dying code objects.
// False: stacks stay off and every capture() returns 0; `*why_not` then holds one sentence.
bool start(std::string* why_not);

// Any thread, with or without the GIL. Never throws, never blocks on Python, allocates nothing for a stack
// that was seen before. `known`: a thread-local of the caller's, null at first, where this thread's memory is noted
// until the thread ends: one look for a thread-local less.
StackId capture(ThreadStacks** known = nullptr) noexcept;

// GIL held. The frames that this thread executes now stay out of its stacks from here on, wherever they are
// the outermost ones: a launcher calls this right before it hands over to the user's script.
void hide_callers();

// GIL held. 3.10 and 3.11: keeps the code objects that are executing alive, so that captures need not compare
// their content any more; worth calling now and then. Nothing to do from 3.12 on. Lines are known from the
// capture on.
void resolve();

// Captures that are less than a whole stack, since the process began.
struct Losses {
  uint64_t truncated;          // deeper than kMaxDepth
  uint64_t other_interpreter;  // on a thread of a sub-interpreter: returned 0
  uint64_t failed;             // out of memory: returned 0
};
Losses losses();

// What was captured so far, over all recordings of the process: an id is never reused for another stack. A
// writer keeps the nodes that its own recording used, and their parents.
size_t node_count();  // ids run from 1 to node_count()
StackNode node(StackId id);
size_t string_count();
const std::string& string(uint32_t index);  // index 0 is ""

// GIL held. No more captures; what was captured stays readable.
void stop();

// In a forked child: no more captures there, and no lock of the parent is touched.
void after_fork_child() noexcept;

}  // namespace python_stacks
}  // namespace plab::recorder
