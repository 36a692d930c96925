// SPDX-License-Identifier: Apache-2.0
// Which autograd node a CUDA call belongs to, read from the running torch without its headers.
//
// A forward launch stores peek(), the number that the next node of its thread will get; a backward launch
// stores the number and the birth thread of the node being evaluated. Joined afterwards, they lead from a
// backward kernel to the forward line (no RecordFunction, no NVTX, nothing per op).
//
// torch exports the functions, but the layout of a node is not stable. So the layout is measured: calibrate()
// compares the memory of real nodes with what Python says about them. Without a unique answer the link stays off
// with a reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace plab::recorder::autograd_link {

struct Reading {
  uint64_t peek_seq = 0;
  uint64_t self_thread = 0;
  bool backward = false;
  uint64_t node_seq = 0, node_thread = 0;
  const void* node_type = nullptr;  // for node_name()
};

// What Python knows of one node: the address of its grad_fn object, `_sequence_nr()`, and the logical id of
// the thread that made it.
struct Sample {
  uintptr_t object;
  uint64_t sequence, thread;
};

// Finds torch's functions in the mapped libtorch_cpu.so. Returns "" or one sentence.
std::string attach();

// The calling thread's logical id (at::RecordFunction::currentThreadId); attach() must have succeeded.
uint64_t current_thread();

// Learns where a node keeps its sequence number and thread. Returns "" (the link is on) or one sentence.
std::string calibrate(const std::vector<Sample>& samples);

// Learns to distinguish the nodes of Python's autograd.Functions, which all have one C++ class. `user` is any node
// whose first input comes from such a node, `function` is that node. On failure only their names are missing.
bool calibrate_functions(const Sample& user, const Sample& function);

// Thread: any, GIL or not; no allocation after a thread's first call, no exception. False: the link is off.
// `reading->self_thread` is torch's number of the thread, which never changes: what an earlier reading on this thread
// found, or 0.
bool read(Reading* reading) noexcept;

// Whether one reference of a node with these counts (c10::intrusive_ptr_target's) can be released by
// decrementing the count alone: neither the node nor its Python object depends on it.
bool may_lower(uint64_t counts) noexcept;

// "on", or why not.
std::string state();
void detach() noexcept;

// The link stays off, for a reason that Python found.
void give_up(const std::string& reason);

// The class name behind Reading::node_type, e.g. "AddmmBackward0". Thread: the consumer, soon after the
// reading: a class that Python made may go away.
std::string node_name(const void* node_type);

}  // namespace plab::recorder::autograd_link
