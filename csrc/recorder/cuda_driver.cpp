// SPDX-License-Identifier: Apache-2.0
#include "recorder/cuda_driver.h"

#include <dlfcn.h>

namespace plab::recorder::cuda_driver {

bool context_exists() noexcept {
  // Declared here, as CUPTI's functions are: building needs no CUDA header.
  using DeviceGetCount = int (*)(int* count);
  using PrimaryContextState = int (*)(int device, unsigned* flags, int* active);

  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  const auto device_count = reinterpret_cast<DeviceGetCount>(dlsym(driver, "cuDeviceGetCount"));
  const auto context_state =
      reinterpret_cast<PrimaryContextState>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  bool found = false;
  int devices = 0;
  // Before cuInit both calls fail, and no context can exist.
  if (device_count != nullptr && context_state != nullptr && device_count(&devices) == 0) {
    for (int device = 0; device < devices && !found; ++device) {
      unsigned flags = 0;
      int active = 0;
      found = context_state(device, &flags, &active) == 0 && active != 0;
    }
  }
  dlclose(driver);
  return found;
}

}  // namespace plab::recorder::cuda_driver
