// SPDX-License-Identifier: Apache-2.0
// What the calls of the CUDA API do, by their names: the one table of recorder and analysis.
//
// Calls are recognised by the prefix of their name, so that future versions (cudaMemcpyBatchAsync_v13000)
// are known. The first row that fits counts. profiling_lab/trace/cuda_calls.py has the names of the kinds.
#pragma once

#include <cstdint>
#include <string_view>

namespace plab::trace {

enum class CudaCall : uint8_t {
  kOther,
  kLaunch,
  kGraphLaunch,
  kCopy,
  kBlockingCopy,  // the host waits for it, unless the driver takes a small one over
  kPrefetch,
  kSet,
  kStreamSync,
  kEventSync,
  kDeviceSync,
  kStreamWaitEvent,  // a stream waits, the host does not
  kPoll,
  kDeviceMemory,
  kPoolMemory,  // from a pool, in the order of a stream: cheap
  kPinnedMemory,
  kRegisterMemory,
  kUnmapMemory,
  kLoadCode,
};

struct CudaCallRow {
  std::string_view name;  // without cu or cuda; where it ends with '$' all of the name
  CudaCall kind;
  char api = ' ';  // 'd' driver, 'r' runtime, ' ' both
};

inline constexpr CudaCallRow kCudaCalls[] = {
    {"LaunchHostFunc", CudaCall::kOther},
    {"Launch", CudaCall::kLaunch},
    {"GraphLaunch", CudaCall::kGraphLaunch},
    {"Memcpy$", CudaCall::kBlockingCopy},
    {"MemcpyHtoD$", CudaCall::kBlockingCopy, 'd'},
    {"MemcpyDtoH$", CudaCall::kBlockingCopy, 'd'},
    {"MemcpyDtoD$", CudaCall::kBlockingCopy, 'd'},
    {"Memcpy", CudaCall::kCopy},
    {"MemPrefetch", CudaCall::kPrefetch},
    {"Memset", CudaCall::kSet},
    {"StreamSynchronize", CudaCall::kStreamSync},
    {"EventSynchronize", CudaCall::kEventSync},
    {"DeviceSynchronize", CudaCall::kDeviceSync},
    {"ThreadSynchronize", CudaCall::kDeviceSync},
    {"CtxSynchronize", CudaCall::kDeviceSync},
    {"StreamWaitEvent", CudaCall::kStreamWaitEvent},
    {"EventQuery$", CudaCall::kPoll},
    {"StreamQuery$", CudaCall::kPoll},
    {"MallocAsync", CudaCall::kPoolMemory, 'r'},
    {"MallocFromPoolAsync", CudaCall::kPoolMemory, 'r'},
    {"FreeAsync", CudaCall::kPoolMemory, 'r'},
    {"MemAllocAsync", CudaCall::kPoolMemory, 'd'},
    {"MemAllocFromPoolAsync", CudaCall::kPoolMemory, 'd'},
    {"MemFreeAsync", CudaCall::kPoolMemory, 'd'},
    {"Malloc", CudaCall::kDeviceMemory, 'r'},
    {"Free", CudaCall::kDeviceMemory, 'r'},
    {"MemAlloc", CudaCall::kDeviceMemory, 'd'},
    {"MemFree", CudaCall::kDeviceMemory, 'd'},
    {"MemCreate", CudaCall::kDeviceMemory, 'd'},
    {"MemMap", CudaCall::kDeviceMemory, 'd'},
    {"MemRelease", CudaCall::kUnmapMemory, 'd'},
    {"MemUnmap", CudaCall::kUnmapMemory, 'd'},
    {"HostAlloc", CudaCall::kPinnedMemory, 'r'},
    {"MemHostAlloc", CudaCall::kPinnedMemory, 'd'},
    {"HostRegister", CudaCall::kRegisterMemory, 'r'},
    {"HostUnregister", CudaCall::kRegisterMemory, 'r'},
    {"MemHost", CudaCall::kRegisterMemory, 'd'},
    {"ModuleLoad", CudaCall::kLoadCode},
    {"ModuleGet", CudaCall::kLoadCode},
    {"LibraryLoad", CudaCall::kLoadCode},
    {"LibraryGet", CudaCall::kLoadCode},
    {"LinkCreate", CudaCall::kLoadCode},
    {"LinkAdd", CudaCall::kLoadCode},
    {"LinkComplete", CudaCall::kLoadCode},
    {"KernelGet", CudaCall::kLoadCode, 'd'},
};

// Without the endings _v3020, _ptsz and _ptds.
constexpr std::string_view without_version(std::string_view name) {
  for (bool cut = true; cut;) {
    cut = false;
    const size_t at = name.rfind('_');
    if (at == std::string_view::npos) break;
    const std::string_view end = name.substr(at + 1);
    const bool is_version =
        end.size() > 1 && end[0] == 'v' && end.find_first_not_of("0123456789", 1) == std::string_view::npos;
    if (is_version || end == "ptsz" || end == "ptds") {
      name = name.substr(0, at);
      cut = true;
    }
  }
  return name;
}

// Of a name as CUPTI, nsys or torch.profiler writes it: `cudaLaunchKernel_v7000`,
// `__cudaPopCallConfiguration`.
constexpr CudaCall cuda_call(std::string_view name) {
  name = without_version(name);
  if (name.substr(0, 2) == "__") name.remove_prefix(2);
  char api = 'r';
  if (name.substr(0, 4) == "cuda") {
    name.remove_prefix(4);
  } else if (name.substr(0, 3) == "hip") {  // of torch.profiler on ROCm
    name.remove_prefix(3);
  } else if (name.substr(0, 2) == "cu") {
    api = 'd';
    name.remove_prefix(2);
  } else {
    return CudaCall::kOther;
  }
  for (const CudaCallRow& row : kCudaCalls) {
    if (row.api != ' ' && row.api != api) continue;
    const bool whole = row.name.back() == '$';
    const std::string_view start = row.name.substr(0, row.name.size() - whole);
    if (whole ? name == start : name.substr(0, start.size()) == start) return row.kind;
  }
  return CudaCall::kOther;
}

}  // namespace plab::trace
