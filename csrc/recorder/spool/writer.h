// SPDX-License-Identifier: Apache-2.0
// Writes a capture file (records.h): append-only. Every complete block can be read, whenever the
// writer dies and whatever else is damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "recorder/spool/file.h"
#include "recorder/spool/records.h"

namespace plab::recorder::spool {

// Appends blocks. Every member may be called by any thread; none throws: a full disk switches the writer off,
// and losses are counted.
class Writer {
 public:
  Writer() = default;
  ~Writer() { close(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Writes into `file`, which the caller has created at `path` and keeps, or, without one, creates it:
  // readable by its owner alone, and never in the place of another. Returns "" or what went wrong.
  std::string open(const std::string& path, const Header& header, int file = -1);
  void close() noexcept;
  void discard() noexcept;  // and delete it
  // Another descriptor of the file, to read it after this one is closed; -1: it is gone.
  int duplicate() noexcept;
  void forget() noexcept;  // in a forked child: the file belongs to the parent

  uint32_t intern(std::string_view text) noexcept;
  void meta(std::string_view name, std::string_view value) noexcept;
  void diagnostic(uint64_t time_ns, uint32_t severity, std::string_view text) noexcept;

  template <class Record>
  void append(const std::vector<Record>& records) noexcept {
    if (records.empty()) return;
    append_bytes(kKindOf<Record>, sizeof(Record), records.data(), records.size() * sizeof(Record));
  }

  struct Usage {
    uint64_t written = 0, lost = 0;  // bytes
    uint64_t records_lost = 0;       // whatever they are; texts are not counted
    uint64_t texts_cut = 0;          // they were too long
    int error = 0;                   // errno of the write that failed, 0 if none; EBADF: the file is gone
  };
  Usage usage() noexcept {
    std::lock_guard lock(mutex_);
    return {bytes_written_, bytes_lost_, records_lost_, texts_cut_, error_};
  }

 private:
  void append_bytes(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept;
  void write_block(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept;
  void write_pending_strings() noexcept;
  void lose(Kind kind, size_t record_bytes, size_t bytes) noexcept;

  std::mutex mutex_;
  SpoolFile file_;
  int error_ = 0;
  uint64_t bytes_written_ = 0, bytes_lost_ = 0, records_lost_ = 0, texts_cut_ = 0;
  uint32_t next_string_ = 0;
  std::unordered_map<std::string, uint32_t> strings_;
  std::vector<char> pending_strings_;
};

}  // namespace plab::recorder::spool
