// SPDX-License-Identifier: Apache-2.0
#include "recorder/spool/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include "recorder/spool/crc32c.h"

namespace plab::recorder::spool {
namespace {

constexpr size_t kFirstSearchStep = 4096, kSearchStep = size_t{1} << 20;
// Limits the time spent on a file that is damaged everywhere: its rest counts as unreadable.
constexpr uint64_t kSearchedInVain = uint64_t{256} << 20;

bool take_text(const char*& at, const char* end, std::string* text) {
  uint32_t length;
  if (end - at < static_cast<ptrdiff_t>(sizeof length)) return false;
  std::memcpy(&length, at, sizeof length);
  at += sizeof length;
  if (end - at < static_cast<ptrdiff_t>(length)) return false;
  text->assign(at, length);
  at += length;
  return true;
}

class Reader {
 public:
  Reader(int file, const std::string& name) : file_(file), name_(name) {
    struct stat facts;
    if (::fstat(file, &facts) != 0) fail();
    size_ = static_cast<uint64_t>(facts.st_size);
    vain_left_ = std::max(kSearchedInVain, 4 * size_);
  }

  Contents read() {
    if (!take_block(0) || kind() != Kind::kHeader) {
      throw std::runtime_error(name_ + " is not a capture of the recorder");
    }
    std::memcpy(&contents_.header, payload_.data(), sizeof(Header));
    if (contents_.header.version != kFormatVersion) {
      throw std::runtime_error(name_ + " was written by another version: its format is " +
                               std::to_string(contents_.header.version) + ", this one reads " +
                               std::to_string(kFormatVersion));
    }
    reserve();
    for (uint64_t at = block_bytes(); at < size_;) {
      if (take_block(at) && add_block()) {
        at += block_bytes();
        continue;
      }
      const uint64_t next = next_block(at);
      contents_.unreadable_bytes += next - at;
      ++contents_.unreadable_places;
      at = next;
    }
    return std::move(contents_);
  }

 private:
  [[noreturn]] void fail() const {
    throw std::runtime_error("cannot read " + name_ + ": " + std::strerror(errno));
  }

  // Fewer bytes only where the file ends.
  size_t read_at(uint64_t at, void* to, size_t bytes) const {
    size_t had = 0;
    while (had < bytes) {
      const ssize_t done =
          ::pread(file_, static_cast<char*>(to) + had, bytes - had, static_cast<off_t>(at + had));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail();
      if (done == 0) break;
      had += static_cast<size_t>(done);
    }
    return had;
  }

  Kind kind() const { return static_cast<Kind>(header_.kind); }
  uint64_t block_bytes() const { return sizeof header_ + uint64_t{header_.payload_bytes}; }

  bool take_header(uint64_t at) {
    if (at + sizeof header_ > size_ || read_at(at, &header_, sizeof header_) != sizeof header_) return false;
    const size_t record = record_bytes(kind());
    return header_.magic == kMagic && header_.payload_bytes <= kLargestBlock && record != 0 &&
           header_.record_bytes == record && header_.payload_bytes % record == 0 &&
           at + block_bytes() <= size_;
  }

  bool take_block(uint64_t at) {
    if (!take_header(at)) return false;
    payload_.resize(header_.payload_bytes);
    if (read_at(at + sizeof header_, payload_.data(), payload_.size()) == payload_.size() &&
        crc32c(payload_.data(), payload_.size(), crc32c(&header_, offsetof(BlockHeader, crc))) ==
            header_.crc) {
      return true;
    }
    spend(block_bytes());
    return false;
  }

  void spend(uint64_t bytes) { vain_left_ -= std::min(vain_left_, bytes); }

  // The next intact block after unreadable bytes, or the end of the file. The length in the damaged block is not used,
  // because it may be wrong.
  uint64_t next_block(uint64_t damaged) {
    std::vector<char> window;
    size_t step = kFirstSearchStep;
    for (uint64_t at = damaged + 1; at < size_ && vain_left_;
         at += step, step = std::min(2 * step, kSearchStep)) {
      window.resize(step + sizeof kMagic - 1);
      const char* const end = window.data() + read_at(at, window.data(), window.size());
      spend(step);
      for (const char* from = window.data(); from < end && vain_left_;) {
        const auto* found =
            static_cast<const char*>(::memmem(from, static_cast<size_t>(end - from), &kMagic, sizeof kMagic));
        if (!found) break;
        const uint64_t candidate = at + static_cast<uint64_t>(found - window.data());
        if (take_block(candidate)) return candidate;
        from = found + 1;
      }
    }
    return size_;
  }

  // Reserves the memory that the block headers announce, so that a large capture is not copied as it grows.
  void reserve() {
    std::map<Kind, size_t> bytes;
    for (uint64_t at = 0; take_header(at); at += block_bytes()) bytes[kind()] += header_.payload_bytes;
    for (const auto& [kind, count] : bytes) {
      if (record_bytes(kind) > 1) contents_.records[kind].reserve(count);
    }
    take_header(0);
  }

  bool add_block() {
    const char* at = payload_.data();
    const char* const end = at + payload_.size();
    if (kind() == Kind::kStrings) return add_strings(at, end);
    if (kind() == Kind::kMeta) {
      for (std::string name, value; take_text(at, end, &name) && take_text(at, end, &value);) {
        contents_.meta[name] = value;
      }
    } else if (kind() != Kind::kHeader) {
      auto& records = contents_.records[kind()];
      records.insert(records.end(), at, end);
    }
    return true;
  }

  // A gap in the numbers is a lost block: its strings are empty. A block that appears twice changes nothing.
  bool add_strings(const char* at, const char* end) {
    uint32_t number;
    if (end - at < static_cast<ptrdiff_t>(sizeof number)) return false;
    std::memcpy(&number, at, sizeof number);
    at += sizeof number;
    auto& strings = contents_.strings;
    // Each missing string took at least four of the skipped bytes.
    if (number > strings.size()) {
      if ((number - strings.size()) > contents_.unreadable_bytes / sizeof number) return false;
      strings.resize(number);
    }
    for (std::string text; take_text(at, end, &text); ++number) {
      if (number < strings.size()) continue;
      strings.push_back(std::move(text));
    }
    return true;
  }

  const int file_;
  const std::string& name_;
  uint64_t size_ = 0;
  uint64_t vain_left_ = 0;
  BlockHeader header_{};
  std::vector<char> payload_;
  Contents contents_;
};

}  // namespace

Contents read(int file, const std::string& name) { return Reader(file, name).read(); }

Contents read(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
  try {
    Contents contents = read(file, path);
    ::close(file);
    return contents;
  } catch (...) {
    ::close(file);
    throw;
  }
}

}  // namespace plab::recorder::spool
