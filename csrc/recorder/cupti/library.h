// SPDX-License-Identifier: Apache-2.0
// Finds libcupti at run time and holds its functions: never linked, never a second copy. And the one question
// that the recorder asks the CUDA driver itself, through the copy the process already has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/cupti/abi.h"

namespace plab::recorder {

namespace cupti {

struct Functions {
#define PLAB_DECLARE(name, parameters) Result(*name) parameters = nullptr;
  PLAB_CUPTI_REQUIRED(PLAB_DECLARE)
  PLAB_CUPTI_OPTIONAL(PLAB_DECLARE)
#undef PLAB_DECLARE
  uint32_t version = 0;
  std::string path;

  // The text of an error code.
  std::string describe(Result result) const;
};

}  // namespace cupti

// In this order: `override_path` if not empty (then nothing else), the copy that is mapped already (torch
// brings one), then `candidates`. A CUPTI of an unknown major version is refused, because records read
// with a wrong layout would be silently wrong; PROFILING_LAB_ANY_CUPTI=1 allows it. Returns "" or one sentence;
// each library is tried once per process and stays loaded, because CUPTI may keep pointers into itself.
std::string load_cupti(const std::string& override_path, const std::vector<std::string>& candidates,
                       cupti::Functions* functions);

// True if this process uses a GPU already (a device's primary context is active), so that things made before
// the recording, CUDA graphs for one, may still be in use. Never loads or initialises the driver.
bool cuda_context_exists() noexcept;

}  // namespace plab::recorder
