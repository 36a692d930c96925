// SPDX-License-Identifier: Apache-2.0
// The recorder's capture file: append-only; whenever the writer dies, and whatever is damaged, every whole
// block can be read.
//
// A file is a sequence of blocks {magic, kind, record size, payload size, CRC-32C} + payload. A payload is an
// array of one of the records below (host byte order, no padding surprises: every struct is asserted), or,
// for kMeta and kStrings, a sequence of entries; that of strings begins with the number of its first, so that
// a lost block shifts no names. Strings are written before the records that name them, and a later kMeta
// entry or stack node replaces an earlier one of the same key. Times are CLOCK_REALTIME nanoseconds; what has
// no value is kNone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/spool_file.h"

namespace plab::trace::spool {

inline constexpr uint32_t kFormatVersion = 3;
inline constexpr uint32_t kNone = 0xffffffffu;

enum class Kind : uint16_t {
  kHeader = 1,  // Header, the first block
  kMeta = 2,
  kStrings = 3,
  kApiCall = 4,
  kKernel = 5,
  kCopy = 6,
  kSet = 7,
  kSync = 8,
  kGraph = 9,
  kOverhead = 10,
  kContext = 11,
  kStream = 12,
  kRange = 13,
  kStackNode = 14,
  kThread = 15,
  kClock = 16,
  kDiagnostic = 17,
  kWindow = 18,
  kSample = 19,
  kSchema = 20,
  kSchemaEntry = 21,
  kResource = 22,
  kGraphNode = 23,
  kHostEvent = 24,
};

struct Header {
  uint32_t version, process;
  uint64_t start_ns;  // time zero of the recording
};

enum ApiFlag : uint32_t {
  kApiDriver = 1,    // a driver call that was not made by a runtime call
  kApiLinked = 2,    // peek_seq and self_thread are known
  kApiBackward = 4,  // an autograd node is being evaluated: node_* are known
};

struct ApiCall {
  uint64_t start_ns, end_ns;
  int64_t peek_seq, node_seq;  // node_seq -1: a node without a number (AccumulateGrad)
  uint64_t node_thread, self_thread;
  uint32_t thread, correlation, name, stack, node_name;
  int32_t return_value;
  uint32_t flags, pad;
};

struct Kernel {
  uint64_t start_ns, end_ns, local_total, graph_node;
  int64_t grid_id;
  uint32_t device, context, stream, correlation, name;
  int32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, static_shared, dynamic_shared;
  uint32_t local_per_thread, shared_executed, graph, registers, launch_type, cache_config, shared_limit;
  uint32_t cluster_x, cluster_y, cluster_z, cluster_scheduling, max_potential_cluster, max_active_clusters;
};

struct Copy {
  uint64_t start_ns, end_ns, bytes, graph_node;
  uint32_t device, context, stream, correlation, copy_kind, source_kind, destination_kind;
  uint32_t source_device, source_context, destination_device, destination_context, count;
};

struct Set {
  uint64_t start_ns, end_ns, bytes, graph_node;
  uint32_t device, context, stream, correlation, value, memory_kind;
};

struct Sync {
  uint64_t start_ns, end_ns;
  uint32_t context, stream, correlation, type, event, pad;
};

struct Graph {
  uint64_t start_ns, end_ns;
  uint32_t device, context, stream, correlation, graph, pad;
};

struct GraphNode {
  uint64_t node, original;    // of a clone; 0: it was made by a call
  uint32_t correlation, pad;  // that call's; 0 of a clone
};

struct Overhead {
  uint64_t start_ns, end_ns;
  uint32_t kind, thread;
};

struct Context {
  uint32_t context, device, null_stream, pad;
};

struct Stream {
  uint32_t context, stream, priority, flag;
};

enum class RangeType : uint32_t { kPushPop = 59, kStartEnd = 60, kMark = 34, kCategory = 33, kDomain = 75 };
enum class Payload : uint32_t {
  kNone = 0,
  kUint64 = 1,
  kInt64 = 2,
  kDouble = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat = 6
};

// What kept a thread of the host busy for a while, by its own account: a garbage collection, a compilation.
struct HostEvent {
  uint64_t start_ns, end_ns;
  uint32_t thread, stack, text, pad;
};

struct Range {
  uint64_t start_ns, end_ns;  // end_ns 0: a mark, or still open when the recording stopped
  uint64_t range_id, payload;
  uint32_t type, domain, thread, end_thread, text, registered, category, color, payload_type;
  uint32_t data;  // a string: the bytes of a payload with a schema, in hexadecimal
};

// What the bytes of an NVTX payload mean: a structure, or (type 0) an enumeration, whose entries hold their
// value in `kind` and whether it is a flag in `flags`.
struct Schema {
  uint64_t id, bytes, flags, alignment;
  uint32_t domain, name, type, entries;
};
struct SchemaEntry {
  uint64_t schema, kind, flags, detail, offset;
  uint32_t domain, index, name, description;
};

// A name that the program gave to something: `type` and `identifier` are NVTX's.
struct Resource {
  uint64_t identifier;
  uint32_t type, domain, name, pad;
};

struct StackNode {
  uint32_t id, parent, file, function;
  int32_t line, first_line;
  uint32_t depth, pad;
};

struct Thread {
  uint32_t thread, name;
};

// Where the Python of a thread was.
struct Sample {
  uint64_t time_ns;
  uint32_t thread, stack;
};

struct Clock {
  uint64_t real_ns, monotonic_ns;
};

struct Diagnostic {
  uint64_t time_ns;
  uint32_t severity, text;  // 1 info, 2 warning, 3 error
};

// A recorded window of a recording with pauses; without windows everything was recorded.
struct Window {
  uint64_t start_ns, end_ns;  // end_ns 0: open; the row with the same start that follows closes it
  int64_t step;               // the first step in it, -1: not begun by a step
};

struct BlockHeader {
  uint32_t magic;
  uint16_t kind, record_bytes;
  uint32_t payload_bytes, crc;
};

// Appends blocks. Every member may be called by any thread; none throws: a full disk turns the writer off,
// and what was lost is counted.
class Writer {
 public:
  Writer() = default;
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Writes into `file`, which the caller has created at `path` and keeps, or, without one, creates it:
  // readable by its owner alone, and never in the place of another. Returns "" or what went wrong.
  std::string open(const std::string& path, const Header& header, int file = -1);
  void close() noexcept;
  void discard() noexcept;  // and delete it
  // Another descriptor of the file, to read it after this one is closed; -1: it is gone.
  int duplicate() noexcept;
  void forget() noexcept;  // in a forked child: the file belongs to the parent

  uint32_t intern(std::string_view text) noexcept;
  void meta(std::string_view name, std::string_view value) noexcept;
  void diagnostic(uint64_t time_ns, uint32_t severity, std::string_view text) noexcept;

  template <class T>
  void append(Kind kind, const std::vector<T>& records) noexcept {
    if (!records.empty()) append_bytes(kind, sizeof(T), records.data(), records.size() * sizeof(T));
  }

  struct Usage {
    uint64_t written = 0, lost = 0;  // bytes
    uint64_t records_lost = 0;       // whatever they are; texts are not counted
    uint64_t texts_cut = 0;          // they were too long
    int error = 0;                   // errno of the write that failed, 0 if none; EBADF: the file is gone
  };
  Usage usage() noexcept {
    std::lock_guard lock(mutex_);
    return {bytes_written_, bytes_lost_, records_lost_, texts_cut_, error_};
  }

 private:
  void append_bytes(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept;
  void write_block(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept;
  void write_pending_strings() noexcept;
  void lose(Kind kind, size_t record_bytes, size_t bytes) noexcept;

  std::mutex mutex_;
  SpoolFile file_;
  int error_ = 0;
  uint64_t bytes_written_ = 0, bytes_lost_ = 0, records_lost_ = 0, texts_cut_ = 0;
  uint32_t next_string_ = 0;
  std::unordered_map<std::string, uint32_t> strings_;
  std::vector<char> pending_strings_;
};

struct Contents {
  Header header{};
  std::vector<std::string> strings;
  std::map<std::string, std::string> meta;
  std::map<Kind, std::vector<char>> records;  // concatenated payloads
  uint64_t unreadable_bytes = 0;              // damaged or cut off; they are skipped
  uint64_t unreadable_places = 0;             // number of unreadable parts
};

// Reads a spool, whole, cut short or damaged, from a descriptor that stays the caller's; `name` is for
// errors. Throws std::runtime_error with one sentence if it is none.
Contents read(int file, const std::string& name);
Contents read(const std::string& path);

}  // namespace plab::trace::spool
