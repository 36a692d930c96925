// SPDX-License-Identifier: Apache-2.0
// The format of a capture file: its blocks and its records. Each field is declared only here.
//
// A file is a sequence of blocks, BlockHeader and payload. A payload is an array of one of the records, or,
// for kMeta and kStrings, a sequence of entries; a block of strings begins with the number of its first
// string, so a lost block does not shift names. Strings are written before the records that name them, and a later kMeta
// entry or stack node replaces an earlier one of the same key.
//
// One list per record, F(type, name), generates the struct, its column types in numpy (module.cpp) and the copy from
// CUPTI's record of the same thing (cupti/abi.h), field by field of the same name. The names
// are those of Nsight Systems' columns in snake case, so that the converter (recording/tables/activity.py)
// finds a field's column by its name. Adding or moving a field changes the format: increase kFormatVersion.
//
// Host byte order. Times are CLOCK_REALTIME nanoseconds; names, texts and files are numbers of strings; what
// has no value is kNone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace plab::recorder::spool {

inline constexpr uint32_t kFormatVersion = 4;
inline constexpr uint32_t kNone = 0xffffffffu;

inline constexpr uint32_t kMagic = 0x4c534c50;             // "PLSL"
inline constexpr size_t kLargestBlock = size_t{64} << 20;  // a reader accepts no larger length

struct BlockHeader {
  uint32_t magic;
  uint16_t kind, record_bytes;
  uint32_t payload_bytes;
  uint32_t crc;  // over the fields before it and the payload: a damaged kind or size must not pass either
};
static_assert(sizeof(BlockHeader) == 16);

struct Header {
  uint32_t version, process;
  uint64_t start_ns;  // time zero of the recording
};
static_assert(sizeof(Header) == 16);

#define PLAB_SPOOL_MEMBER(type, name) type name;
#define PLAB_SPOOL_SIZE(type, name) +sizeof(type)
#define PLAB_SPOOL_VISIT(type, name) visit(#name, offsetof(Self, name), std::type_identity<type>{});
#define PLAB_SPOOL_TAKE(type, name) \
  if constexpr (requires { source.name; }) name = static_cast<type>(source.name);
// each_field() calls visit(name, offset, std::type_identity<type>) for all fields; take() copies those that
// `source` has, too. There must be no padding between fields: add a field called `pad`.
#define PLAB_SPOOL_RECORD(Name, FIELDS)          \
  struct Name {                                  \
    FIELDS(PLAB_SPOOL_MEMBER)                    \
    template <class Visit>                       \
    static void each_field(Visit visit) {        \
      using Self = Name;                         \
      FIELDS(PLAB_SPOOL_VISIT)                   \
    }                                            \
    template <class Source>                      \
    constexpr Name& take(const Source& source) { \
      FIELDS(PLAB_SPOOL_TAKE)                    \
      return *this;                              \
    }                                            \
  };                                             \
  static_assert(sizeof(Name) == FIELDS(PLAB_SPOOL_SIZE), "the compiler has put bytes between the fields");

enum ApiFlag : uint32_t {
  kApiDriver = 1,    // a driver call that was not made by a runtime call
  kApiLinked = 2,    // peek_seq and self_thread are known
  kApiBackward = 4,  // an autograd node is being evaluated: node_* are known
};

// Times, the call's thread, ids and name; what the autograd link read; what we took from start_ns on. node_seq -1: a
// node without a number (AccumulateGrad).
#define PLAB_SPOOL_API_CALL(F) \
  F(uint64_t, start_ns)        \
  F(uint64_t, end_ns)          \
  F(int64_t, peek_seq)         \
  F(int64_t, node_seq)         \
  F(uint64_t, node_thread)     \
  F(uint64_t, self_thread)     \
  F(uint32_t, thread)          \
  F(uint32_t, correlation_id)  \
  F(uint32_t, name)            \
  F(uint32_t, stack)           \
  F(uint32_t, node_name)       \
  F(int32_t, return_value)     \
  F(uint32_t, flags)           \
  F(uint32_t, own_ns)
PLAB_SPOOL_RECORD(ApiCall, PLAB_SPOOL_API_CALL)

#define PLAB_SPOOL_KERNEL(F)              \
  F(uint64_t, start_ns)                   \
  F(uint64_t, end_ns)                     \
  F(uint64_t, local_memory_total)         \
  F(uint64_t, graph_node_id)              \
  F(int64_t, grid_id)                     \
  F(uint32_t, device_id)                  \
  F(uint32_t, context_id)                 \
  F(uint32_t, stream_id)                  \
  F(uint32_t, correlation_id)             \
  F(uint32_t, mangled_name)               \
  F(int32_t, grid_x)                      \
  F(int32_t, grid_y)                      \
  F(int32_t, grid_z)                      \
  F(int32_t, block_x)                     \
  F(int32_t, block_y)                     \
  F(int32_t, block_z)                     \
  F(int32_t, static_shared_memory)        \
  F(int32_t, dynamic_shared_memory)       \
  F(uint32_t, local_memory_per_thread)    \
  F(uint32_t, shared_memory_executed)     \
  F(uint32_t, graph_id)                   \
  F(uint32_t, registers_per_thread)       \
  F(uint32_t, launch_type)                \
  F(uint32_t, cache_config)               \
  F(uint32_t, shared_memory_limit_config) \
  F(uint32_t, cluster_x)                  \
  F(uint32_t, cluster_y)                  \
  F(uint32_t, cluster_z)                  \
  F(uint32_t, cluster_scheduling_policy)  \
  F(uint32_t, max_potential_cluster_size) \
  F(uint32_t, max_active_clusters)
PLAB_SPOOL_RECORD(Kernel, PLAB_SPOOL_KERNEL)

#define PLAB_SPOOL_COPY(F)    \
  F(uint64_t, start_ns)       \
  F(uint64_t, end_ns)         \
  F(uint64_t, bytes)          \
  F(uint64_t, graph_node_id)  \
  F(uint32_t, device_id)      \
  F(uint32_t, context_id)     \
  F(uint32_t, stream_id)      \
  F(uint32_t, correlation_id) \
  F(uint32_t, copy_kind)      \
  F(uint32_t, src_kind)       \
  F(uint32_t, dst_kind)       \
  F(uint32_t, src_device_id)  \
  F(uint32_t, src_context_id) \
  F(uint32_t, dst_device_id)  \
  F(uint32_t, dst_context_id) \
  F(uint32_t, copy_count)
PLAB_SPOOL_RECORD(Copy, PLAB_SPOOL_COPY)

#define PLAB_SPOOL_SET(F)     \
  F(uint64_t, start_ns)       \
  F(uint64_t, end_ns)         \
  F(uint64_t, bytes)          \
  F(uint64_t, graph_node_id)  \
  F(uint32_t, device_id)      \
  F(uint32_t, context_id)     \
  F(uint32_t, stream_id)      \
  F(uint32_t, correlation_id) \
  F(uint32_t, value)          \
  F(uint32_t, mem_kind)
PLAB_SPOOL_RECORD(Set, PLAB_SPOOL_SET)

#define PLAB_SPOOL_SYNC(F)    \
  F(uint64_t, start_ns)       \
  F(uint64_t, end_ns)         \
  F(uint32_t, context_id)     \
  F(uint32_t, stream_id)      \
  F(uint32_t, correlation_id) \
  F(uint32_t, sync_type)      \
  F(uint32_t, event_id)       \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(Sync, PLAB_SPOOL_SYNC)

// A replayed graph as one record.
#define PLAB_SPOOL_GRAPH(F)   \
  F(uint64_t, start_ns)       \
  F(uint64_t, end_ns)         \
  F(uint32_t, device_id)      \
  F(uint32_t, context_id)     \
  F(uint32_t, stream_id)      \
  F(uint32_t, correlation_id) \
  F(uint32_t, graph_id)       \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(Graph, PLAB_SPOOL_GRAPH)

// Which call put a node into a graph. original: of a clone, 0 if a call made it; correlation_id: that
// call's, 0 of a clone.
#define PLAB_SPOOL_GRAPH_NODE(F) \
  F(uint64_t, graph_node_id)     \
  F(uint64_t, original)          \
  F(uint32_t, correlation_id)    \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(GraphNode, PLAB_SPOOL_GRAPH_NODE)

#define PLAB_SPOOL_OVERHEAD(F) \
  F(uint64_t, start_ns)        \
  F(uint64_t, end_ns)          \
  F(uint32_t, overhead_kind)   \
  F(uint32_t, thread)
PLAB_SPOOL_RECORD(Overhead, PLAB_SPOOL_OVERHEAD)

#define PLAB_SPOOL_CONTEXT(F) \
  F(uint32_t, context_id)     \
  F(uint32_t, device_id)      \
  F(uint32_t, null_stream_id) \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(Context, PLAB_SPOOL_CONTEXT)

#define PLAB_SPOOL_STREAM(F) \
  F(uint32_t, context_id)    \
  F(uint32_t, stream_id)     \
  F(uint32_t, priority)      \
  F(uint32_t, flag)
PLAB_SPOOL_RECORD(Stream, PLAB_SPOOL_STREAM)

// What kept a host thread busy and reports it itself: a garbage collection, a compilation.
#define PLAB_SPOOL_HOST_EVENT(F) \
  F(uint64_t, start_ns)          \
  F(uint64_t, end_ns)            \
  F(uint32_t, thread)            \
  F(uint32_t, stack)             \
  F(uint32_t, text)              \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(HostEvent, PLAB_SPOOL_HOST_EVENT)

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

// end_ns 0: a mark, or still open when the recording stopped. data: a string, the bytes of a payload with a
// schema, in hexadecimal.
#define PLAB_SPOOL_RANGE(F) \
  F(uint64_t, start_ns)     \
  F(uint64_t, end_ns)       \
  F(uint64_t, range_id)     \
  F(uint64_t, payload)      \
  F(uint32_t, type)         \
  F(uint32_t, domain)       \
  F(uint32_t, thread)       \
  F(uint32_t, end_thread)   \
  F(uint32_t, text)         \
  F(uint32_t, registered)   \
  F(uint32_t, category)     \
  F(uint32_t, color)        \
  F(uint32_t, payload_type) \
  F(uint32_t, data)
PLAB_SPOOL_RECORD(Range, PLAB_SPOOL_RANGE)

// What the bytes of an NVTX payload mean: a structure, or (type 0) an enumeration, whose entries hold their
// value in `kind` and whether it is a flag in `flags`.
#define PLAB_SPOOL_SCHEMA(F) \
  F(uint64_t, id)            \
  F(uint64_t, bytes)         \
  F(uint64_t, flags)         \
  F(uint64_t, alignment)     \
  F(uint32_t, domain)        \
  F(uint32_t, name)          \
  F(uint32_t, type)          \
  F(uint32_t, entries)
PLAB_SPOOL_RECORD(Schema, PLAB_SPOOL_SCHEMA)

#define PLAB_SPOOL_SCHEMA_ENTRY(F) \
  F(uint64_t, schema)              \
  F(uint64_t, kind)                \
  F(uint64_t, flags)               \
  F(uint64_t, detail)              \
  F(uint64_t, offset)              \
  F(uint32_t, domain)              \
  F(uint32_t, index)               \
  F(uint32_t, name)                \
  F(uint32_t, description)
PLAB_SPOOL_RECORD(SchemaEntry, PLAB_SPOOL_SCHEMA_ENTRY)

// A name that the program gave to something: `type` and `identifier` are NVTX's.
#define PLAB_SPOOL_RESOURCE(F) \
  F(uint64_t, identifier)      \
  F(uint32_t, type)            \
  F(uint32_t, domain)          \
  F(uint32_t, name)            \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(Resource, PLAB_SPOOL_RESOURCE)

#define PLAB_SPOOL_STACK_NODE(F) \
  F(uint32_t, id)                \
  F(uint32_t, parent)            \
  F(uint32_t, file)              \
  F(uint32_t, function)          \
  F(int32_t, line)               \
  F(int32_t, first_line)         \
  F(uint32_t, depth)             \
  F(uint32_t, pad)
PLAB_SPOOL_RECORD(StackNode, PLAB_SPOOL_STACK_NODE)

#define PLAB_SPOOL_THREAD(F) \
  F(uint32_t, thread)        \
  F(uint32_t, name)
PLAB_SPOOL_RECORD(Thread, PLAB_SPOOL_THREAD)

// Where the Python of a thread was.
#define PLAB_SPOOL_SAMPLE(F) \
  F(uint64_t, time_ns)       \
  F(uint32_t, thread)        \
  F(uint32_t, stack)
PLAB_SPOOL_RECORD(Sample, PLAB_SPOOL_SAMPLE)

#define PLAB_SPOOL_CLOCK(F) \
  F(uint64_t, real_ns)      \
  F(uint64_t, monotonic_ns)
PLAB_SPOOL_RECORD(Clock, PLAB_SPOOL_CLOCK)

// severity: 1 info, 2 warning, 3 error.
#define PLAB_SPOOL_DIAGNOSTIC(F) \
  F(uint64_t, time_ns)           \
  F(uint32_t, severity)          \
  F(uint32_t, text)
PLAB_SPOOL_RECORD(Diagnostic, PLAB_SPOOL_DIAGNOSTIC)

// A recorded window of a recording with pauses; without windows everything was recorded. end_ns 0: open; the
// row with the same start that follows closes it. step: the first step in it, -1: not begun by a step.
#define PLAB_SPOOL_WINDOW(F) \
  F(uint64_t, start_ns)      \
  F(uint64_t, end_ns)        \
  F(int64_t, step)
PLAB_SPOOL_RECORD(Window, PLAB_SPOOL_WINDOW)

// X(number in the file, record, name in what read_spool() returns)
#define PLAB_SPOOL_RECORDS(X)          \
  X(4, ApiCall, "calls")               \
  X(5, Kernel, "kernels")              \
  X(6, Copy, "copies")                 \
  X(7, Set, "sets")                    \
  X(8, Sync, "syncs")                  \
  X(9, Graph, "graphs")                \
  X(10, Overhead, "overheads")         \
  X(11, Context, "contexts")           \
  X(12, Stream, "streams")             \
  X(13, Range, "ranges")               \
  X(14, StackNode, "stack_nodes")      \
  X(15, Thread, "threads")             \
  X(16, Clock, "clocks")               \
  X(17, Diagnostic, "diagnostics")     \
  X(18, Window, "windows")             \
  X(19, Sample, "samples")             \
  X(20, Schema, "schemas")             \
  X(21, SchemaEntry, "schema_entries") \
  X(22, Resource, "resources")         \
  X(23, GraphNode, "graph_nodes")      \
  X(24, HostEvent, "host_events")

enum class Kind : uint16_t {
  kHeader = 1,   // Header, the first block
  kMeta = 2,     // pairs of texts
  kStrings = 3,  // the number of the first, then texts
#define PLAB_SPOOL_KIND(number, Record, key) k##Record = number,
  PLAB_SPOOL_RECORDS(PLAB_SPOOL_KIND)
};

template <class Record>
inline constexpr Kind kKindOf{};
#define PLAB_SPOOL_KIND_OF(number, Record, key) \
  template <>                                   \
  inline constexpr Kind kKindOf<Record> = Kind::k##Record;
PLAB_SPOOL_RECORDS(PLAB_SPOOL_KIND_OF)

// The size of a record of this kind, 1 for text; 0: there is no such kind.
constexpr size_t record_bytes(Kind kind) {
  switch (kind) {
    case Kind::kHeader:
      return sizeof(Header);
    case Kind::kMeta:
    case Kind::kStrings:
      return 1;
#define PLAB_SPOOL_BYTES(number, Record, key) \
  case Kind::k##Record:                       \
    return sizeof(Record);
      PLAB_SPOOL_RECORDS(PLAB_SPOOL_BYTES)
  }
  return 0;
}

#undef PLAB_SPOOL_MEMBER
#undef PLAB_SPOOL_SIZE
#undef PLAB_SPOOL_VISIT
#undef PLAB_SPOOL_TAKE
#undef PLAB_SPOOL_RECORD
#undef PLAB_SPOOL_KIND
#undef PLAB_SPOOL_KIND_OF
#undef PLAB_SPOOL_BYTES

}  // namespace plab::recorder::spool
