// SPDX-License-Identifier: Apache-2.0
// A driver with two GPUs, of which CUDA shows the second one as its first: what gpu_facts.py and the energy sampler ask
// of libcuda and of NVML. Each GPU uses its idle power, and more in the intervals that a test names; its energy counter
// gets a new value once per period, which is that of some time before.
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

struct Use {
  int64_t start, end;
  double watts;
};

std::mutex lock;
std::vector<Use> uses, planned;
double idle_watts = 100;
int64_t period = 20'000'000, latency = 3'000'000, began = 0;
bool is_initialised = false, has_context = false, has_counter = true;
int asked = 0;

int64_t now() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

double joules(int64_t at) {
  double sum = idle_watts * static_cast<double>(at - began) * 1e-9;
  for (const Use& use : uses) {
    const int64_t end = use.end < at ? use.end : at;
    if (end > use.start) sum += (use.watts - idle_watts) * static_cast<double>(end - use.start) * 1e-9;
  }
  return sum;
}

template <typename T>
int give(T* out, T value) {
  *out = value;
  return 0;
}

int gpu_of(const void* handle) { return static_cast<int>(reinterpret_cast<intptr_t>(handle)) - 1; }
int find(void** out, int gpu) { return give(out, reinterpret_cast<void*>(static_cast<intptr_t>(gpu + 1))); }

}  // namespace

API void fake_start(double idle, int64_t period_ns, int64_t latency_ns) {
  idle_watts = idle, period = period_ns, latency = latency_ns, began = now();
  is_initialised = has_context = true;
}
// Relative to what fake_go returns.
API void fake_use(int64_t start, int64_t end, double watts) { planned.push_back({start, end, watts}); }
// The uses begin a little later. No reading of the counter can come in between.
API int64_t fake_go() {
  std::lock_guard guard(lock);
  const int64_t zero = now() + 50'000'000;
  for (const Use& use : planned) uses.push_back({zero + use.start, zero + use.end, use.watts});
  planned.clear();
  return zero;
}
API double fake_joules(int64_t at) {
  std::lock_guard guard(lock);
  return joules(at);
}
API void fake_no_counter() { has_counter = false; }
API int fake_asked() { return asked; }

API int cuInit(unsigned) { return 0; }
API int cuDeviceGetCount(int* count) { return is_initialised ? give(count, 1) : 3; }
API int cuDeviceGet(int* device, int index) { return give(device, index); }
API int cuDeviceGetAttribute(int* value, int, int) { return give(value, 0); }
API int cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "Fake GPU") < 0; }
API int cuDeviceTotalMem_v2(size_t* bytes, int) { return give(bytes, size_t{1} << 30); }
API int cuDeviceGetUuid_v2(unsigned char* uuid, int) { return memset(uuid, 0xbb, 16), 0; }
API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  return give(flags, 0u), give(active, has_context ? 1 : 0);
}
API int cuDevicePrimaryCtxRetain(void** context, int) { return give(context, static_cast<void*>(&uses)); }
API int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
API int cuCtxGetCurrent(void** context) { return give(context, static_cast<void*>(nullptr)); }
API int cuCtxPushCurrent_v2(void*) { return 0; }
API int cuCtxPopCurrent_v2(void**) { return 0; }
API int cuCtxSynchronize() { return 0; }
API int cuGetErrorName(int, const char** name) { return give(name, "CUDA_ERROR"); }

API const char* nvmlErrorString(int status) { return status == 3 ? "Not Supported" : "Not Found"; }
API int nvmlInit_v2() { return 0; }
API int nvmlShutdown() { return 0; }
API int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  return strcmp(uuid, "GPU-bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb") == 0 ? find(gpu, 1) : 6;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char*, void**) { return 6; }
// Twenty processes, of which two did something; as NVML does it, none without room for all.
struct Process {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};
struct Sample {
  unsigned pid;
  unsigned long long timestamp;
  unsigned sm, memory, encoder, decoder;
};
API int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* out) {
  const unsigned room = *count;
  *count = 20;
  if (room < 20) return 7;
  for (unsigned i = 0; i < 20; ++i) out[i] = {1000 + i, 1 << 20, 0, 0};
  return 0;
}
API int nvmlDeviceGetProcessUtilization(void*, Sample* out, unsigned* count, unsigned long long since) {
  if (since >= 500) return 6;
  const unsigned room = *count;
  *count = 2;
  if (room < 2 || !out) return 7;
  out[0] = {1003, 100, 40, 1, 2, 3}, out[1] = {1004, 500, 60, 4, 5, 6};
  return 0;
}
API int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* millijoules) {
  if (!has_counter) return 3;
  std::lock_guard guard(lock);
  ++asked;
  const int64_t update = began + (now() - began) / period * period - latency;
  // The first GPU of the machine is another one's: its counter runs as well.
  const double used =
      gpu_of(gpu) == 1 ? joules(update) : 1e6 + 7 * static_cast<double>(update - began) * 1e-9;
  return give(millijoules, static_cast<unsigned long long>(1000 * (50 + used)));
}
API int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return give(milliwatts, 321'000u); }
API int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return give(milliwatts, 700'000u); }
API int nvmlDeviceGetClockInfo(void*, int kind, unsigned* mhz) {
  return give(mhz, kind == 1 ? 1980u : 3201u);
}
API int nvmlDeviceGetTemperature(void*, int, unsigned* celsius) { return give(celsius, 45u); }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* mask) {
  return give(mask, 4ull | 1ull);
}
