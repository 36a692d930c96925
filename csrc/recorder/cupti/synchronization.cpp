// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/synchronization.h"

#include <atomic>

#include "recorder/spool/records.h"
#include "trace/cuda_calls.h"

namespace plab::recorder::synchronization {
namespace {

constexpr uint32_t kLargestCbid = 4096;  // far above any version's last id
constexpr uint8_t kWaitBits = 7,
                  kOwnDefaultStream = 8;  // the latter: compiled with a default stream per thread

std::atomic<uint8_t> calls[2][kLargestCbid];  // of the driver and of the runtime
std::atomic<const cupti::Functions*> library{nullptr};

uint8_t call_at(cupti::Domain domain, uint32_t cbid) noexcept {
  return calls[domain == cupti::Domain::kRuntime][cbid % kLargestCbid].load(std::memory_order_relaxed);
}

}  // namespace

Wait classify(const std::string& name) {
  switch (trace::cuda_call(name)) {
    case trace::CudaCall::kEventSync:
      return Wait::kEvent;
    case trace::CudaCall::kStreamWaitEvent:
      return Wait::kStreamForEvent;
    case trace::CudaCall::kStreamSync:
      return Wait::kStream;
    case trace::CudaCall::kDeviceSync:
      return Wait::kContext;
    default:
      return Wait::kNone;
  }
}

void start(const cupti::Functions* functions) {
  library = functions;
  for (auto& domain : calls) {
    for (auto& call : domain) call = 0;
  }
}

void add(cupti::Domain domain, uint32_t cbid, const std::string& name) {
  const bool own = name.find("_ptsz") != std::string::npos;
  calls[domain == cupti::Domain::kRuntime][cbid % kLargestCbid] =
      static_cast<uint8_t>(static_cast<uint8_t>(classify(name)) | (own ? kOwnDefaultStream : 0));
}

uint32_t stream_of(cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) noexcept {
  const auto wait = static_cast<Wait>(call_at(domain, cbid) & kWaitBits);
  if (wait != Wait::kStream && wait != Wait::kStreamForEvent) return spool::kNone;
  const cupti::Functions* functions = library.load(std::memory_order_relaxed);
  if (!functions->GetStreamIdEx || !call.function_params) return spool::kNone;
  void* const stream = *static_cast<void* const*>(call.function_params);
  const uint8_t own = call_at(domain, cbid) & kOwnDefaultStream ? 1 : 0;
  uint32_t id = 0;
  const cupti::Result code = functions->GetStreamIdEx(call.context, stream, own, &id);
  return code == cupti::kSuccess ? id : spool::kNone;
}

}  // namespace plab::recorder::synchronization
