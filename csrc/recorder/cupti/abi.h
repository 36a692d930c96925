// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's binary interface that the recorder uses, declared here.
//
// A machine with pip's torch has libcupti.so but not its headers, and the recorder must build there. So the
// functions, enumerators and record layouts are declared here. conformance.cpp checks them against the real
// headers where those are installed. Records only ever grow at their end (CUDA 12.0 to 13.x): each
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
inline constexpr uint32_t kVersionRefusableBuffers = 27;  // older versions crash if a buffer is refused
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

// Each list below, F(type, name, CUPTI's name), generates a record and the check of its layout. A field has the
// name of the field of recorder/spool/records.h that receives its value.

// CUpti_ActivityKernel5 to 10 agree up to here. cache_configs: requested in its low half, executed in its
// high one.
#define PLAB_CUPTI_KERNEL(F)                                                  \
  F(uint8_t, cache_configs, cacheConfig)                                      \
  F(uint8_t, shared_memory_config, sharedMemoryConfig)                        \
  F(uint16_t, registers_per_thread, registersPerThread)                       \
  F(int, partitioned_global_cache_requested, partitionedGlobalCacheRequested) \
  F(int, partitioned_global_cache_executed, partitionedGlobalCacheExecuted)   \
  F(uint64_t, start_ns, start)                                                \
  F(uint64_t, end_ns, end)                                                    \
  F(uint64_t, completed, completed)                                           \
  F(uint32_t, device_id, deviceId)                                            \
  F(uint32_t, context_id, contextId)                                          \
  F(uint32_t, stream_id, streamId)                                            \
  F(int32_t, grid_x, gridX)                                                   \
  F(int32_t, grid_y, gridY)                                                   \
  F(int32_t, grid_z, gridZ)                                                   \
  F(int32_t, block_x, blockX)                                                 \
  F(int32_t, block_y, blockY)                                                 \
  F(int32_t, block_z, blockZ)                                                 \
  F(int32_t, static_shared_memory, staticSharedMemory)                        \
  F(int32_t, dynamic_shared_memory, dynamicSharedMemory)                      \
  F(uint32_t, local_memory_per_thread, localMemoryPerThread)                  \
  F(uint32_t, local_memory_total, localMemoryTotal)                           \
  F(uint32_t, correlation_id, correlationId)                                  \
  F(int64_t, grid_id, gridId)                                                 \
  F(const char*, name, name)                                                  \
  F(void*, reserved, reserved0)                                               \
  F(uint64_t, queued, queued)                                                 \
  F(uint64_t, submitted, submitted)                                           \
  F(uint8_t, launch_type, launchType)                                         \
  F(uint8_t, is_carveout_requested, isSharedMemoryCarveoutRequested)          \
  F(uint8_t, carveout_requested, sharedMemoryCarveoutRequested)               \
  F(uint8_t, carveout_padding, padding)                                       \
  F(uint32_t, shared_memory_executed, sharedMemoryExecuted)                   \
  F(uint64_t, graph_node_id, graphNodeId)                                     \
  F(int, shared_memory_limit_config, shmemLimitConfig)                        \
  F(uint32_t, graph_id, graphId)
// Follows KernelRecord from Kernel8 on.
#define PLAB_CUPTI_KERNEL_CLUSTER(F)                              \
  F(void*, access_policy_window, pAccessPolicyWindow)             \
  F(uint32_t, channel_id, channelID)                              \
  F(int, channel_type, channelType)                               \
  F(uint32_t, cluster_x, clusterX)                                \
  F(uint32_t, cluster_y, clusterY)                                \
  F(uint32_t, cluster_z, clusterZ)                                \
  F(uint32_t, cluster_scheduling_policy, clusterSchedulingPolicy) \
  F(uint64_t, local_memory_total, localMemoryTotal_v2)
// Follows KernelClusterRecord from Kernel9 on.
#define PLAB_CUPTI_KERNEL_OCCUPANCY(F)                             \
  F(uint32_t, max_potential_cluster_size, maxPotentialClusterSize) \
  F(uint32_t, max_active_clusters, maxActiveClusters)
#define PLAB_CUPTI_MEMCPY(F)                                \
  F(uint8_t, copy_kind, copyKind)                           \
  F(uint8_t, src_kind, srcKind)                             \
  F(uint8_t, dst_kind, dstKind)                             \
  F(uint8_t, flags, flags)                                  \
  F(uint64_t, bytes, bytes)                                 \
  F(uint64_t, start_ns, start)                              \
  F(uint64_t, end_ns, end)                                  \
  F(uint32_t, device_id, deviceId)                          \
  F(uint32_t, context_id, contextId)                        \
  F(uint32_t, stream_id, streamId)                          \
  F(uint32_t, correlation_id, correlationId)                \
  F(uint32_t, runtime_correlation_id, runtimeCorrelationId) \
  F(uint32_t, reserved_pad, pad)                            \
  F(void*, reserved, reserved0)                             \
  F(uint64_t, graph_node_id, graphNodeId)
#define PLAB_CUPTI_MEMCPY_PEER(F)            \
  F(uint8_t, copy_kind, copyKind)            \
  F(uint8_t, src_kind, srcKind)              \
  F(uint8_t, dst_kind, dstKind)              \
  F(uint8_t, flags, flags)                   \
  F(uint64_t, bytes, bytes)                  \
  F(uint64_t, start_ns, start)               \
  F(uint64_t, end_ns, end)                   \
  F(uint32_t, device_id, deviceId)           \
  F(uint32_t, context_id, contextId)         \
  F(uint32_t, stream_id, streamId)           \
  F(uint32_t, src_device_id, srcDeviceId)    \
  F(uint32_t, src_context_id, srcContextId)  \
  F(uint32_t, dst_device_id, dstDeviceId)    \
  F(uint32_t, dst_context_id, dstContextId)  \
  F(uint32_t, correlation_id, correlationId) \
  F(void*, reserved, reserved0)              \
  F(uint64_t, graph_node_id, graphNodeId)
#define PLAB_CUPTI_MEMSET(F)                 \
  F(uint32_t, value, value)                  \
  F(uint64_t, bytes, bytes)                  \
  F(uint64_t, start_ns, start)               \
  F(uint64_t, end_ns, end)                   \
  F(uint32_t, device_id, deviceId)           \
  F(uint32_t, context_id, contextId)         \
  F(uint32_t, stream_id, streamId)           \
  F(uint32_t, correlation_id, correlationId) \
  F(uint16_t, flags, flags)                  \
  F(uint16_t, mem_kind, memoryKind)          \
  F(uint32_t, reserved_pad, pad)             \
  F(void*, reserved, reserved0)              \
  F(uint64_t, graph_node_id, graphNodeId)
#define PLAB_CUPTI_OVERHEAD(F)                    \
  F(int, overhead_kind, overheadKind)             \
  F(int, object_kind, objectKind)                 \
  F(uint32_t, process, objectId.pt.processId)     \
  F(uint32_t, thread, objectId.pt.threadId)       \
  F(uint32_t, object_rest, objectId.dcs.streamId) \
  F(uint64_t, start_ns, start)                    \
  F(uint64_t, end_ns, end)
#define PLAB_CUPTI_GRAPH_TRACE(F)            \
  F(uint32_t, correlation_id, correlationId) \
  F(uint64_t, start_ns, start)               \
  F(uint64_t, end_ns, end)                   \
  F(uint32_t, device_id, deviceId)           \
  F(uint32_t, graph_id, graphId)             \
  F(uint32_t, context_id, contextId)         \
  F(uint32_t, stream_id, streamId)
#define PLAB_CUPTI_CONTEXT(F)              \
  F(uint32_t, context_id, contextId)       \
  F(uint32_t, device_id, deviceId)         \
  F(uint16_t, compute_api, computeApiKind) \
  F(uint16_t, null_stream_id, nullStreamId)
#define PLAB_CUPTI_STREAM(F)         \
  F(uint32_t, context_id, contextId) \
  F(uint32_t, stream_id, streamId)   \
  F(uint32_t, priority, priority)    \
  F(int, flag, flag)                 \
  F(uint32_t, correlation_id, correlationId)

#define PLAB_MEMBER(type, name, theirs) type name;
struct KernelRecord {
  int kind;
  PLAB_CUPTI_KERNEL(PLAB_MEMBER)
};
struct KernelClusterRecord {
  PLAB_CUPTI_KERNEL_CLUSTER(PLAB_MEMBER)
};
struct KernelOccupancyRecord {
  PLAB_CUPTI_KERNEL_OCCUPANCY(PLAB_MEMBER)
};
struct MemcpyRecord {
  int kind;
  PLAB_CUPTI_MEMCPY(PLAB_MEMBER)
};
struct MemcpyPeerRecord {
  int kind;
  PLAB_CUPTI_MEMCPY_PEER(PLAB_MEMBER)
};
struct MemsetRecord {
  int kind;
  PLAB_CUPTI_MEMSET(PLAB_MEMBER)
};
struct OverheadRecord {
  int kind;
  PLAB_CUPTI_OVERHEAD(PLAB_MEMBER)
};
struct GraphTraceRecord {
  int kind;
  PLAB_CUPTI_GRAPH_TRACE(PLAB_MEMBER)
};
struct ContextRecord {
  int kind;
  PLAB_CUPTI_CONTEXT(PLAB_MEMBER)
};
struct StreamRecord {
  int kind;
  PLAB_CUPTI_STREAM(PLAB_MEMBER)
};
#undef PLAB_MEMBER

using SubscriberHandle = struct OpaqueSubscriber*;
using CallbackFunction = void (*)(void* userdata, Domain domain, uint32_t cbid, const void* data);
using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

// X(name, parameters): functions that every recording needs.
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
