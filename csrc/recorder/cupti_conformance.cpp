// SPDX-License-Identifier: Apache-2.0
// Compiled only where CUPTI's headers are installed: our declarations agree with them, or the build fails.
// Headers older than 13.0 lack some of the names below, and those of versions to come may rename some; a
// user's build must not break on either, so both are left out. (Records only grow, and optional functions are
// looked up by name.)
#include <cupti.h>

#if CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 130200

#include <type_traits>

#include "recorder/cupti_abi.h"

namespace plab::recorder::cupti {
namespace {

#define SAME_OFFSET(ours, our_field, theirs, their_field) \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field))
#define PREFIX_OF(ours, theirs) static_assert(sizeof(ours) <= sizeof(theirs))

static_assert(kSuccess == CUPTI_SUCCESS && kMaxLimitReached == CUPTI_ERROR_MAX_LIMIT_REACHED);
static_assert(kNotInitialized == CUPTI_ERROR_NOT_INITIALIZED && kUnknown == CUPTI_ERROR_UNKNOWN);
static_assert(kInsufficientPrivileges == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
static_assert(kMultipleSubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(int(Domain::kDriver) == CUPTI_CB_DOMAIN_DRIVER_API);
static_assert(int(Domain::kRuntime) == CUPTI_CB_DOMAIN_RUNTIME_API);
static_assert(int(Domain::kResource) == CUPTI_CB_DOMAIN_RESOURCE);
static_assert(kGraphNodeCreated == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
static_assert(kGraphNodeCloned == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
static_assert(int(Site::kEnter) == CUPTI_API_ENTER && int(Site::kExit) == CUPTI_API_EXIT);
static_assert(int(ActivityKind::kMemcpy) == CUPTI_ACTIVITY_KIND_MEMCPY);
static_assert(int(ActivityKind::kMemset) == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert(int(ActivityKind::kContext) == CUPTI_ACTIVITY_KIND_CONTEXT);
static_assert(int(ActivityKind::kConcurrentKernel) == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(int(ActivityKind::kOverhead) == CUPTI_ACTIVITY_KIND_OVERHEAD);
static_assert(int(ActivityKind::kMemcpyPeer) == CUPTI_ACTIVITY_KIND_MEMCPY2);
static_assert(int(ActivityKind::kStream) == CUPTI_ACTIVITY_KIND_STREAM);
static_assert(int(ActivityKind::kGraphTrace) == CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
static_assert(kAttributeZeroedBuffer == CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER);
static_assert(kThreadIdSystem == CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
static_assert(kFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);

static_assert(sizeof(CallbackData) == sizeof(CUpti_CallbackData));
SAME_OFFSET(CallbackData, return_value, CUpti_CallbackData, functionReturnValue);
SAME_OFFSET(CallbackData, symbol_name, CUpti_CallbackData, symbolName);
SAME_OFFSET(CallbackData, correlation_data, CUpti_CallbackData, correlationData);
SAME_OFFSET(CallbackData, correlation_id, CUpti_CallbackData, correlationId);

// The stream is the first argument (wait_calls.cpp).
static_assert(offsetof(cuStreamSynchronize_params, hStream) == 0);
static_assert(offsetof(cuStreamWaitEvent_params, hStream) == 0);
static_assert(offsetof(cudaStreamSynchronize_v3020_params, stream) == 0);
static_assert(offsetof(cudaStreamWaitEvent_v3020_params, stream) == 0);

SAME_OFFSET(ResourceData, descriptor, CUpti_ResourceData, resourceDescriptor);
SAME_OFFSET(GraphData, node, CUpti_GraphData, node);
SAME_OFFSET(GraphData, original_node, CUpti_GraphData, originalNode);

using Kernel = CUpti_ActivityKernel9;
PREFIX_OF(KernelRecord, Kernel);
SAME_OFFSET(KernelRecord, cache_config, Kernel, cacheConfig);
SAME_OFFSET(KernelRecord, registers_per_thread, Kernel, registersPerThread);
SAME_OFFSET(KernelRecord, start, Kernel, start);
SAME_OFFSET(KernelRecord, device, Kernel, deviceId);
SAME_OFFSET(KernelRecord, stream, Kernel, streamId);
SAME_OFFSET(KernelRecord, grid, Kernel, gridX);
SAME_OFFSET(KernelRecord, block, Kernel, blockX);
SAME_OFFSET(KernelRecord, static_shared, Kernel, staticSharedMemory);
SAME_OFFSET(KernelRecord, local_per_thread, Kernel, localMemoryPerThread);
SAME_OFFSET(KernelRecord, correlation, Kernel, correlationId);
SAME_OFFSET(KernelRecord, grid_id, Kernel, gridId);
SAME_OFFSET(KernelRecord, name, Kernel, name);
SAME_OFFSET(KernelRecord, launch_type, Kernel, launchType);
SAME_OFFSET(KernelRecord, shared_executed, Kernel, sharedMemoryExecuted);
SAME_OFFSET(KernelRecord, graph_node, Kernel, graphNodeId);
SAME_OFFSET(KernelRecord, shared_limit_config, Kernel, shmemLimitConfig);
SAME_OFFSET(KernelRecord, graph, Kernel, graphId);
#define SAME_TAIL(our_field, their_field)                                        \
  static_assert(sizeof(KernelRecord) + offsetof(KernelClusterTail, our_field) == \
                offsetof(Kernel, their_field))
SAME_TAIL(access_policy, pAccessPolicyWindow);
SAME_TAIL(cluster, clusterX);
SAME_TAIL(cluster_scheduling, clusterSchedulingPolicy);
SAME_TAIL(local_total, localMemoryTotal_v2);
SAME_TAIL(max_potential_cluster, maxPotentialClusterSize);
SAME_TAIL(max_active_clusters, maxActiveClusters);

PREFIX_OF(MemcpyRecord, CUpti_ActivityMemcpy5);
SAME_OFFSET(MemcpyRecord, copy_kind, CUpti_ActivityMemcpy5, copyKind);
SAME_OFFSET(MemcpyRecord, bytes, CUpti_ActivityMemcpy5, bytes);
SAME_OFFSET(MemcpyRecord, device, CUpti_ActivityMemcpy5, deviceId);
SAME_OFFSET(MemcpyRecord, correlation, CUpti_ActivityMemcpy5, correlationId);
SAME_OFFSET(MemcpyRecord, graph_node, CUpti_ActivityMemcpy5, graphNodeId);
PREFIX_OF(MemcpyPeerRecord, CUpti_ActivityMemcpyPtoP4);
SAME_OFFSET(MemcpyPeerRecord, source_device, CUpti_ActivityMemcpyPtoP4, srcDeviceId);
SAME_OFFSET(MemcpyPeerRecord, destination_context, CUpti_ActivityMemcpyPtoP4, dstContextId);
SAME_OFFSET(MemcpyPeerRecord, correlation, CUpti_ActivityMemcpyPtoP4, correlationId);
SAME_OFFSET(MemcpyPeerRecord, graph_node, CUpti_ActivityMemcpyPtoP4, graphNodeId);
PREFIX_OF(MemsetRecord, CUpti_ActivityMemset4);
SAME_OFFSET(MemsetRecord, value, CUpti_ActivityMemset4, value);
SAME_OFFSET(MemsetRecord, bytes, CUpti_ActivityMemset4, bytes);
SAME_OFFSET(MemsetRecord, correlation, CUpti_ActivityMemset4, correlationId);
SAME_OFFSET(MemsetRecord, memory_kind, CUpti_ActivityMemset4, memoryKind);
SAME_OFFSET(MemsetRecord, graph_node, CUpti_ActivityMemset4, graphNodeId);
PREFIX_OF(OverheadRecord, CUpti_ActivityOverhead);
SAME_OFFSET(OverheadRecord, overhead_kind, CUpti_ActivityOverhead, overheadKind);
SAME_OFFSET(OverheadRecord, process, CUpti_ActivityOverhead, objectId);
SAME_OFFSET(OverheadRecord, start, CUpti_ActivityOverhead, start);
static_assert(offsetof(CUpti_ActivityObjectKindId, pt.threadId) == 4);
static_assert(kObjectThread == CUPTI_ACTIVITY_OBJECT_THREAD);
PREFIX_OF(GraphTraceRecord, CUpti_ActivityGraphTrace2);
SAME_OFFSET(GraphTraceRecord, correlation, CUpti_ActivityGraphTrace2, correlationId);
SAME_OFFSET(GraphTraceRecord, start, CUpti_ActivityGraphTrace2, start);
SAME_OFFSET(GraphTraceRecord, device, CUpti_ActivityGraphTrace2, deviceId);
SAME_OFFSET(GraphTraceRecord, stream, CUpti_ActivityGraphTrace2, streamId);
PREFIX_OF(ContextRecord, CUpti_ActivityContext3);
SAME_OFFSET(ContextRecord, device, CUpti_ActivityContext3, deviceId);
SAME_OFFSET(ContextRecord, null_stream, CUpti_ActivityContext3, nullStreamId);
PREFIX_OF(StreamRecord, CUpti_ActivityStream);
SAME_OFFSET(StreamRecord, priority, CUpti_ActivityStream, priority);
SAME_OFFSET(StreamRecord, flag, CUpti_ActivityStream, flag);

// Every function of ours takes as many bytes of arguments, in the same order, as theirs: compared by type
// after enums and opaque pointers are brought to one form.
template <class T>
struct Plain {
  using type = T;
};
template <class T>
requires std::is_enum_v<T>
struct Plain<T> {
  using type = int;
};
template <>
struct Plain<uint32_t> {
  using type = int;
};
template <class T>
struct Plain<T*> {
  using type = void*;
};
template <class F>
struct Signature;
template <class R, class... A>
struct Signature<R (*)(A...)> {
  using type = typename Plain<R>::type(typename Plain<A>::type...);
};
#define SAME_SIGNATURE(name, parameters)                                       \
  static_assert(std::is_same_v<typename Signature<Result(*) parameters>::type, \
                               typename Signature<decltype(&cupti##name)>::type>);
PLAB_CUPTI_REQUIRED(SAME_SIGNATURE)
PLAB_CUPTI_OPTIONAL(SAME_SIGNATURE)

}  // namespace
}  // namespace plab::recorder::cupti

#endif
