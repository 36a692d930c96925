// SPDX-License-Identifier: Apache-2.0
// Structured data at NVTX ranges and marks (NVTX's payload extension). NCCL reports sizes and communicators this
// way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "recorder/nvtx/abi.h"

namespace plab::recorder::nvtx_payloads {

// The bytes of all payloads, each behind a header of four 64-bit numbers: domain, schema, size, size with the
// header. nsys exports them in this form. A payload of unknown or implausible size is left out.
std::string copy(uint32_t domain, const nvtx::PayloadData* payloads, size_t count);

// The text that a payload itself carries for the event, "" if it has none.
std::string message(uint32_t domain, const nvtx::PayloadData* payloads, size_t count);

uint64_t register_schema(uint32_t domain, const nvtx::SchemaAttributes& attributes);
uint64_t register_enum(uint32_t domain, const nvtx::EnumAttributes& attributes);

}  // namespace plab::recorder::nvtx_payloads
