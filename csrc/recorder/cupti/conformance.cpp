// SPDX-License-Identifier: Apache-2.0
// Compiled only where CUPTI's headers are installed: the build fails if our declarations do not match them.
// Headers older than 13.0 lack some of the names below, and future versions may rename some. A user's build must not
// fail on either, so both are left out. (Records only grow, and optional functions are
// looked up by name.)
#include <cupti.h>

#if CUPTI_API_VERSION >= 130000 && CUPTI_API_VERSION < 130200

#include <type_traits>
#include <utility>

#include "recorder/cupti/abi.h"

namespace plab::recorder::cupti {
namespace {

#define SAME_OFFSET(ours, our_field, theirs, their_field) \
  static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field))

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

// The stream is the first argument (synchronization.cpp).
static_assert(offsetof(cuStreamSynchronize_params, hStream) == 0);
static_assert(offsetof(cuStreamWaitEvent_params, hStream) == 0);
static_assert(offsetof(cudaStreamSynchronize_v3020_params, stream) == 0);
static_assert(offsetof(cudaStreamWaitEvent_v3020_params, stream) == 0);

SAME_OFFSET(ResourceData, descriptor, CUpti_ResourceData, resourceDescriptor);
SAME_OFFSET(GraphData, node, CUpti_GraphData, node);
SAME_OFFSET(GraphData, original_node, CUpti_GraphData, originalNode);

// Every field of every record: where it is and how large. `start`: bytes of CUPTI's record before our struct begins.
#define SAME_FIELD(type, name, theirs)                                       \
  static_assert(kStart + offsetof(Ours, name) == offsetof(Theirs, theirs) && \
                sizeof(Ours::name) == sizeof(std::declval<Theirs>().theirs));
#define SAME_RECORD(Record, TheirRecord, FIELDS, start)     \
  namespace Record##_layout {                               \
    using Ours = Record;                                    \
    using Theirs = TheirRecord;                             \
    constexpr size_t kStart = start;                        \
    static_assert(kStart + sizeof(Ours) <= sizeof(Theirs)); \
    FIELDS(SAME_FIELD)                                      \
  }
SAME_RECORD(KernelRecord, CUpti_ActivityKernel9, PLAB_CUPTI_KERNEL, 0)
SAME_RECORD(KernelClusterRecord, CUpti_ActivityKernel9, PLAB_CUPTI_KERNEL_CLUSTER, sizeof(KernelRecord))
SAME_RECORD(KernelOccupancyRecord, CUpti_ActivityKernel9, PLAB_CUPTI_KERNEL_OCCUPANCY,
            sizeof(KernelRecord) + sizeof(KernelClusterRecord))
SAME_RECORD(MemcpyRecord, CUpti_ActivityMemcpy5, PLAB_CUPTI_MEMCPY, 0)
SAME_RECORD(MemcpyPeerRecord, CUpti_ActivityMemcpyPtoP4, PLAB_CUPTI_MEMCPY_PEER, 0)
SAME_RECORD(MemsetRecord, CUpti_ActivityMemset4, PLAB_CUPTI_MEMSET, 0)
SAME_RECORD(OverheadRecord, CUpti_ActivityOverhead, PLAB_CUPTI_OVERHEAD, 0)
SAME_RECORD(GraphTraceRecord, CUpti_ActivityGraphTrace2, PLAB_CUPTI_GRAPH_TRACE, 0)
SAME_RECORD(ContextRecord, CUpti_ActivityContext3, PLAB_CUPTI_CONTEXT, 0)
SAME_RECORD(StreamRecord, CUpti_ActivityStream, PLAB_CUPTI_STREAM, 0)
static_assert(kObjectThread == CUPTI_ACTIVITY_OBJECT_THREAD);

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
