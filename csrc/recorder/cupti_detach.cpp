// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti_detach.h"

#include <cstring>

#include "recorder/cuda_driver.h"

namespace plab::recorder::cupti_detach {
namespace {

constexpr uint32_t kLargestCbid = 4096;      // far above any version's last id
constexpr char kCall[] = "cuCtxGetCurrent";  // which waits for nothing, changes nothing, and needs no context

// Of the thread that is in run(); other threads' calls of that name are not ours.
struct Request {
  const cupti::Functions* functions = nullptr;
  bool entered = false;
  cupti::Result result = cupti::kUnknown;
};
thread_local Request* request = nullptr;

uint32_t id_of_call(const cupti::Functions& functions) {
  for (uint32_t cbid = 1; cbid < kLargestCbid; ++cbid) {
    const char* name = nullptr;
    const bool named = functions.GetCallbackName(cupti::Domain::kDriver, cbid, &name) == cupti::kSuccess;
    if (named && name && std::strcmp(name, kCall) == 0) return cbid;
  }
  return 0;
}

}  // namespace

// NVIDIA's word: cuptiFinalize is safe at the end of a CUDA call, where CUPTI knows who is inside of it. So
// we make one, and finalize in its callback.
bool run(const cupti::Functions& functions, cupti::SubscriberHandle subscriber) noexcept {
  if (!functions.Finalize) return false;
  const cuda_driver::Call call = cuda_driver::find_call(kCall);
  if (!call) return functions.Finalize() == cupti::kSuccess;  // no driver: nobody can be in CUDA
  const uint32_t cbid = id_of_call(functions);
  if (cbid == 0 || functions.EnableCallback(1, subscriber, cupti::Domain::kDriver, cbid) != cupti::kSuccess) {
    return false;
  }
  Request ours{&functions};
  request = &ours;
  void* context = nullptr;
  call(&context);
  request = nullptr;
  if (ours.result == cupti::kSuccess) return true;
  functions.EnableCallback(0, subscriber, cupti::Domain::kDriver, cbid);
  return false;
}

bool on_call(cupti::Domain domain, uint32_t, const cupti::CallbackData& call) noexcept {
  if (request == nullptr || domain != cupti::Domain::kDriver) return false;
  if (call.site == cupti::Site::kEnter) {
    request->entered = true;
  } else if (request->entered) {
    Request& ours = *request;
    request = nullptr;
    ours.result = ours.functions->Finalize();
  }
  return true;
}

}  // namespace plab::recorder::cupti_detach
