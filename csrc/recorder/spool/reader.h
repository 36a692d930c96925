// SPDX-License-Identifier: Apache-2.0
// Reads a capture file and skips what is damaged.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "recorder/spool/records.h"

namespace plab::recorder::spool {

struct Contents {
  Header header{};
  std::vector<std::string> strings;
  std::map<std::string, std::string> meta;
  std::map<Kind, std::vector<char>> records;  // concatenated payloads
  uint64_t unreadable_bytes = 0;              // damaged or cut off; they are skipped
  uint64_t unreadable_places = 0;             // the number of unreadable intervals
};

// Reads a spool, whole, cut short or damaged, from a descriptor that stays the caller's; `name` is for
// errors. Throws std::runtime_error with one sentence if it is not a spool.
Contents read(int file, const std::string& name);
Contents read(const std::string& path);

}  // namespace plab::recorder::spool
