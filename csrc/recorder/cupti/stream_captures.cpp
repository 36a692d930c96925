// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/stream_captures.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

namespace plab::recorder::stream_captures {
namespace {

constexpr uint32_t kLargestCbid = 4096;  // far above any version's last id
enum Act : uint8_t { kNothing, kBegin, kEnd };

std::atomic<uint8_t> acts[2][kLargestCbid];  // of the driver's calls and of the runtime's
std::atomic<int> captures{0};
std::atomic<uint64_t> all_captures{0};
std::atomic<uint32_t> session{0};

// A runtime call makes driver calls, and only the outermost counts. A call that was running when an earlier
// recording ended has no end here.
struct Nesting {
  uint32_t session = 0;
  int depth = 0;
};
static_assert(
    std::is_trivially_destructible_v<Nesting>);  // calls may still come after the destructors of this thread
constinit thread_local Nesting nesting;

// The end of a capture that began before start() is ignored.
void one_less() {
  int known = captures;
  while (known > 0 && !captures.compare_exchange_weak(known, known - 1)) {
  }
}

Act act_of(const std::string& name) {
  const auto contains = [&name](const char* part) { return name.find(part) != std::string::npos; };
  if (contains("StreamBeginCapture")) return kBegin;  // ...ToGraph too
  return contains("StreamEndCapture") ? kEnd : kNothing;
}

std::atomic<uint8_t>& act_at(cupti::Domain domain, uint32_t cbid) {
  return acts[domain == cupti::Domain::kRuntime][cbid % kLargestCbid];
}

}  // namespace

std::vector<Call> start(const cupti::Functions& functions) {
  session.fetch_add(1);
  captures = 0;
  all_captures = 0;
  std::vector<Call> calls;
  for (const auto domain : {cupti::Domain::kRuntime, cupti::Domain::kDriver}) {
    for (uint32_t cbid = 1; cbid < kLargestCbid; ++cbid) {
      const char* name = nullptr;
      const bool named = functions.GetCallbackName(domain, cbid, &name) == cupti::kSuccess && name;
      const Act act = named ? act_of(name) : kNothing;
      act_at(domain, cbid) = act;
      if (act != kNothing) calls.push_back({domain, cbid});
    }
  }
  return calls;
}

bool on_call(cupti::Domain domain, uint32_t cbid, const cupti::CallbackData& call) noexcept {
  const uint8_t act = act_at(domain, cbid).load(std::memory_order_relaxed);
  if (act == kNothing) return false;
  const bool enters = call.site == cupti::Site::kEnter;
  if (const uint32_t now = session.load(std::memory_order_relaxed); nesting.session != now)
    nesting = {now, 0};
  const int depth = enters ? nesting.depth++ : nesting.depth = std::max(nesting.depth - 1, 0);
  if (depth > 0) return true;
  if (act == kBegin && enters) ++captures, ++all_captures;
  const bool failed = !enters && call.return_value && *static_cast<const int*>(call.return_value) != 0;
  if ((act == kBegin && failed) || (act == kEnd && !enters)) one_less();
  return true;
}

int under_way() noexcept { return captures; }
uint64_t begun() noexcept { return all_captures; }

}  // namespace plab::recorder::stream_captures
