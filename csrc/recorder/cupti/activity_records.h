// SPDX-License-Identifier: Apache-2.0
// CUPTI's record bytes -> events. Knows nothing about where the bytes came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "recorder/cupti/library.h"
#include "recorder/spool/writer.h"

namespace plab::recorder {

// Collects the events of any number of buffers, then writes them out.
class ActivityDecoder {
 public:
  ActivityDecoder(const cupti::Functions& functions, spool::Writer& writer)
      : functions_(functions), writer_(writer) {}

  // Steps through one filled buffer. CUPTI's own stepper knows the size of every record of its version;
  // of each record the known prefix is read; unknown kinds are counted and skipped. Throws
  // std::bad_alloc, and the rest of the buffer is then lost.
  void decode(uint8_t* data, size_t valid_bytes);

  void write_out();

  struct Counts {
    uint64_t kernels = 0, copies = 0, sets = 0, graphs = 0, unknown = 0, without_time = 0;
  };
  const Counts& counts() const noexcept { return counts_; }

  // The latest call whose work has a record, and when that work ended.
  struct Newest {
    uint32_t correlation = 0;
    uint64_t time_ns = 0;
  };
  const Newest& newest() const noexcept { return newest_; }

  void reset() {
    counts_ = {};
    newest_ = {};
    names_.clear();
  }

 private:
  void add_kernel(const cupti::KernelRecord& record);
  template <class Record>
  void add_copy(const Record& record);
  template <class Record>
  bool has_time(const Record& record);
  uint32_t name(const char* text);

  const cupti::Functions& functions_;
  spool::Writer& writer_;
  Counts counts_;
  Newest newest_;
  struct Name {
    std::string text;
    uint32_t string;
  };
  std::unordered_map<const char*, Name> names_;  // by CUPTI's pointer, which may be reused for another name
  std::vector<spool::Kernel> kernels_;
  std::vector<spool::Copy> copies_;
  std::vector<spool::Set> sets_;
  std::vector<spool::Graph> graphs_;
  std::vector<spool::Overhead> overheads_;
  std::vector<spool::Context> contexts_;
  std::vector<spool::Stream> streams_;
};

}  // namespace plab::recorder
