// SPDX-License-Identifier: Apache-2.0
#include "recorder/spool/writer.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "recorder/spool/crc32c.h"

namespace plab::recorder::spool {
namespace {

constexpr size_t kLongestText = size_t{16} << 20;   // what is longer is cut
constexpr size_t kMostPending = kLargestBlock / 2;  // strings wait for the next record, but no more than this
static_assert(kMostPending + kLongestText + 2 * sizeof(uint32_t) < kLargestBlock);
constexpr size_t kStringsRemembered = 1 << 16;  // limits the table when texts contain changing numbers

void put_number(std::vector<char>& out, uint32_t number) {
  const auto* bytes = reinterpret_cast<const char*>(&number);
  out.insert(out.end(), bytes, bytes + sizeof number);
}

void put_text(std::vector<char>& out, std::string_view text) {
  put_number(out, static_cast<uint32_t>(text.size()));
  out.insert(out.end(), text.begin(), text.end());
}

}  // namespace

std::string Writer::open(const std::string& path, const Header& header, int file) {
  std::lock_guard lock(mutex_);
  error_ = file_.open(path, file);
  if (error_) return "cannot write " + path + ": " + std::strerror(error_);
  bytes_written_ = bytes_lost_ = records_lost_ = texts_cut_ = 0;
  next_string_ = 0;
  strings_.clear();
  pending_strings_.clear();
  write_block(Kind::kHeader, sizeof header, &header, sizeof header);
  if (!error_) return "";
  file_.remove();
  return "cannot write " + path + ": " + std::strerror(error_);
}

void Writer::close() noexcept {
  std::lock_guard lock(mutex_);
  if (!file_.is_open()) return;
  write_pending_strings();
  file_.close();
}

void Writer::discard() noexcept {
  std::lock_guard lock(mutex_);
  file_.remove();
}

int Writer::duplicate() noexcept {
  std::lock_guard lock(mutex_);
  const int file = file_.get();
  return file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 3);
}

void Writer::forget() noexcept {
  // Takes no lock: the thread that held it may not exist in a forked child.
  file_.close();
}

uint32_t Writer::intern(std::string_view text) noexcept try {
  std::lock_guard lock(mutex_);
  if (text.size() > kLongestText) {
    bytes_lost_ += text.size() - kLongestText;
    ++texts_cut_;
    text = text.substr(0, kLongestText);
  }
  std::string key(text);
  if (auto found = strings_.find(key); found != strings_.end()) return found->second;
  if (strings_.size() >= kStringsRemembered) strings_.clear();
  if (pending_strings_.size() >= kMostPending) write_pending_strings();
  const bool first = pending_strings_.empty();
  // What may throw comes first: the number of a text is its position in the file.
  const size_t room = pending_strings_.size() + text.size() + 2 * sizeof(uint32_t);
  if (pending_strings_.capacity() < room) pending_strings_.reserve(2 * room);
  strings_.emplace(std::move(key), next_string_);
  if (first) put_number(pending_strings_, next_string_);
  put_text(pending_strings_, text);
  return next_string_++;
} catch (...) {
  return kNone;
}

void Writer::meta(std::string_view name, std::string_view value) noexcept try {
  std::vector<char> entry;
  put_text(entry, name);
  put_text(entry, value);
  if (entry.size() > kLargestBlock) {  // half a value would be worth nothing
    std::lock_guard lock(mutex_);
    bytes_lost_ += entry.size();
    ++texts_cut_;
    return;
  }
  append_bytes(Kind::kMeta, 1, entry.data(), entry.size());
} catch (...) {
  ++bytes_lost_;
}

void Writer::diagnostic(uint64_t time_ns, uint32_t severity, std::string_view text) noexcept try {
  append(std::vector{Diagnostic{time_ns, severity, intern(text)}});
} catch (...) {
  ++bytes_lost_;
}

void Writer::append_bytes(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  write_pending_strings();
  const size_t most = kLargestBlock / record_bytes * record_bytes;
  const auto* at = static_cast<const char*>(data);
  for (; bytes; at += std::min(bytes, most), bytes -= std::min(bytes, most)) {
    write_block(kind, record_bytes, at, std::min(bytes, most));
  }
}

void Writer::write_pending_strings() noexcept {
  if (pending_strings_.empty()) return;
  write_block(Kind::kStrings, 1, pending_strings_.data(), pending_strings_.size());
  pending_strings_.clear();
}

void Writer::lose(Kind kind, size_t record_bytes, size_t bytes) noexcept {
  bytes_lost_ += bytes;
  if (kind != Kind::kStrings && kind != Kind::kMeta) records_lost_ += bytes / record_bytes;
}

void Writer::write_block(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept {
  const int file = error_ ? -1 : file_.get();
  if (file < 0) {
    if (!error_) error_ = EBADF;  // the program closed it; the number may belong to another file now
    lose(kind, record_bytes, bytes);
    return;
  }
  BlockHeader header{kMagic, static_cast<uint16_t>(kind), static_cast<uint16_t>(record_bytes),
                     static_cast<uint32_t>(bytes), 0};
  header.crc = crc32c(data, bytes, crc32c(&header, offsetof(BlockHeader, crc)));
  std::array<iovec, 2> parts{iovec{&header, sizeof header}, iovec{const_cast<void*>(data), bytes}};
  for (size_t first = 0; first < parts.size();) {
    const ssize_t done = ::writev(file, &parts[first], static_cast<int>(parts.size() - first));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      error_ = errno;
      break;
    }
    for (auto left = static_cast<size_t>(done); first < parts.size();) {
      iovec& part = parts[first];
      const size_t step = std::min(left, part.iov_len);
      part = {static_cast<char*>(part.iov_base) + step, part.iov_len - step};
      left -= step;
      if (part.iov_len) break;
      ++first;
    }
  }
  if (error_) {
    lose(kind, record_bytes, bytes);
  } else {
    bytes_written_ += bytes;
  }
}

}  // namespace plab::recorder::spool
