// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's binary interface that the recorder uses, declared here.
//
// A machine with pip's torch has libcupti.so but not its headers, and the recorder must build there. So the
// functions, enumerators and record layouts stand here, and conformance.cpp proves them against the
// real headers wherever those are installed. Records only ever grow at their end (CUDA 12.0 to 13.x): each
// struct below is the prefix that all these versions share, and fields past it are read only where the
// loaded library is new enough to have them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plab::recorder::cupti {

using Result = int;  // an enum in C
inline constexpr Result kSuccess = 0;
inline constexpr Result kMaxLimitReached = 12;
inline constexpr Result kNotInitialized = 15;
inline constexpr Result kInsufficientPrivileges = 35;
inline constexpr Result kMultipleSubscribers = 39;
inline constexpr Result kUnknown = 999;

enum class Domain : uint32_t { kDriver = 1, kRuntime = 2, kResource = 3 };
enum class Site : int { kEnter = 0, kExit = 1 };

// Of Domain::kResource.
inline constexpr uint32_t kGraphNodeCreated = 13;
inline constexpr uint32_t kGraphNodeCloned = 20;

enum class ActivityKind : int {
  kMemcpy = 1,
  kMemset = 2,
  kContext = 9,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPeer = 22,
  kStream = 37,
  kGraphTrace = 51,
};

inline constexpr int kAttributeZeroedBuffer = 5;
inline constexpr int kThreadIdSystem = 1;  // thread ids are what gettid() says
inline constexpr uint32_t kFlushForced = 1;
inline constexpr int kObjectThread = 2;  // what an overhead record is about

// CUPTI's own version numbers: a counter up to 12.9, then major*10000 + minor*100 + update.
inline constexpr uint32_t kVersionRefusableBuffers = 27;  // before, refusing a buffer crashes
inline constexpr uint32_t kVersionClusterFields = 18;     // CUDA 12.0: Kernel8 with clusters
inline constexpr uint32_t kMajor = 10000;            // a version by this is CUDA's major one, 0 before 13
inline constexpr uint32_t kNewestMajor = 13;         // records of later ones were never compared with ours
inline constexpr uint32_t kVersionMaxClusters = 24;  // from Kernel9 on, the occupancy of clusters

struct CallbackData {
  Site site;
  const char* function_name;
  const void* function_params;
  void* return_value;  // at kExit: a cudaError_t or a CUresult, both an int
  const char* symbol_name;
  void* context;
  uint32_t context_uid;
  uint64_t* correlation_data;
  uint32_t correlation_id;
};

struct ResourceData {
  void* context;
  void* handle;
  void* descriptor;  // a GraphData, of a callback about graphs
};

struct GraphData {
  void *graph, *original_graph;
  void *node, *original_node;  // the latter of a clone
};

struct SubscriberParams {
  size_t struct_size;
  const char* subscriber_name;
  char* old_subscriber_name;
  size_t old_subscriber_size;
};
inline constexpr size_t kSubscriberNameBytes = 64;

struct Record {
  int kind;
};

struct KernelRecord {  // CUpti_ActivityKernel5 to 10 agree up to here
  int kind;
  uint8_t cache_config;
  uint8_t shared_memory_config;
  uint16_t registers_per_thread;
  int partitioned_cache[2];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3];
  int32_t block[3];
  int32_t static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total;
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
  void* reserved;
  uint64_t queued, submitted;
  uint8_t launch_type;
  uint8_t carveout[3];
  uint32_t shared_executed;
  uint64_t graph_node;
  int shared_limit_config;
  uint32_t graph;
};

struct KernelClusterTail {  // follows KernelRecord from Kernel8 on
  void* access_policy;
  uint32_t channel;
  int channel_type;
  uint32_t cluster[3];
  uint32_t cluster_scheduling;
  uint64_t local_total;
  uint32_t max_potential_cluster;  // from Kernel9 on
  uint32_t max_active_clusters;
};

struct MemcpyRecord {
  int kind;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t correlation, runtime_correlation;
  uint32_t pad;
  void* reserved;
  uint64_t graph_node;
};

struct MemcpyPeerRecord {
  int kind;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t source_device, source_context, destination_device, destination_context;
  uint32_t correlation;
  void* reserved;
  uint64_t graph_node;
};

struct MemsetRecord {
  int kind;
  uint32_t value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t correlation;
  uint16_t flags, memory_kind;
  uint32_t pad;
  void* reserved;
  uint64_t graph_node;
};

struct OverheadRecord {
  int kind;
  int overhead_kind;
  int object_kind;
  uint32_t process, thread, pad;
  uint64_t start, end;
};

struct GraphTraceRecord {
  int kind;
  uint32_t correlation;
  uint64_t start, end;
  uint32_t device, graph, context, stream;
};

struct ContextRecord {
  int kind;
  uint32_t context, device;
  uint16_t api, null_stream;
};

struct StreamRecord {
  int kind;
  uint32_t context, stream, priority;
  int flag;
  uint32_t correlation;
};

using SubscriberHandle = struct OpaqueSubscriber*;
using CallbackFunction = void (*)(void* userdata, Domain domain, uint32_t cbid, const void* data);
using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

// X(name, parameters): functions without which nothing can be recorded.
#define PLAB_CUPTI_REQUIRED(X)                                                                    \
  X(GetVersion, (uint32_t * version))                                                             \
  X(GetResultString, (Result result, const char** text))                                          \
  X(GetCallbackName, (Domain domain, uint32_t cbid, const char** name))                           \
  X(Subscribe, (SubscriberHandle * subscriber, CallbackFunction callback, void* userdata))        \
  X(Unsubscribe, (SubscriberHandle subscriber))                                                   \
  X(EnableCallback, (uint32_t enable, SubscriberHandle subscriber, Domain domain, uint32_t cbid)) \
  X(ActivityEnable, (ActivityKind kind))                                                          \
  X(ActivityDisable, (ActivityKind kind))                                                         \
  X(ActivityRegisterCallbacks, (BufferRequested requested, BufferCompleted completed))            \
  X(ActivityFlushAll, (uint32_t flag))                                                            \
  X(ActivityGetNextRecord, (uint8_t * buffer, size_t valid_bytes, Record * *record))              \
  X(ActivityGetNumDroppedRecords, (void* context, uint32_t stream, size_t* dropped))              \
  X(ActivitySetAttribute, (int attribute, size_t* value_bytes, void* value))

// Functions that newer versions have; without one, its feature stays off.
#define PLAB_CUPTI_OPTIONAL(X)                                                                            \
  X(Subscribe_v2,                                                                                         \
    (SubscriberHandle * subscriber, CallbackFunction callback, void* userdata, SubscriberParams* params)) \
  X(SetThreadIdType, (int type))                                                                          \
  X(ActivityEnableAndDump, (ActivityKind kind))                                                           \
  X(GetGraphNodeId, (void* node, uint64_t* id))                                                           \
  X(GetStreamIdEx, (void* context, void* stream, uint8_t per_thread, uint32_t* id))

}  // namespace plab::recorder::cupti
