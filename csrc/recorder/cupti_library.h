// SPDX-License-Identifier: Apache-2.0
// Finds libcupti at run time and holds its functions. Never links it, never loads a second copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recorder/cupti_abi.h"

namespace plab::recorder {

// The path of a mapped library whose file name starts with `prefix`; "" if none is.
std::string find_mapped_library(const char* prefix);

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
// brings one), then `candidates`. A CUPTI of an unknown major version is refused, for records that are read
// by a wrong layout are wrong in silence; PROFILING_LAB_ANY_CUPTI=1 allows it. Returns "" or one sentence;
// each library is tried once per process and stays loaded, because CUPTI may keep pointers into itself.
std::string load_cupti(const std::string& override_path, const std::vector<std::string>& candidates,
                       cupti::Functions* functions);

}  // namespace plab::recorder
