// SPDX-License-Identifier: Apache-2.0
#include "trace/spool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace plab::trace::spool {
namespace {

constexpr uint32_t kMagic = 0x4c534c50;             // "PLSL"
constexpr size_t kLargestBlock = size_t{64} << 20;  // a reader can trust a length only within bounds
constexpr size_t kStringsRemembered = 1 << 16;  // texts with running numbers must not grow the table for ever

static_assert(sizeof(Header) == 16 && sizeof(BlockHeader) == 16);
static_assert(sizeof(ApiCall) == 80 && sizeof(Kernel) == 144 && sizeof(Copy) == 80 && sizeof(Set) == 56);
static_assert(sizeof(Sync) == 40 && sizeof(Graph) == 40 && sizeof(Overhead) == 24 &&
              sizeof(GraphNode) == 24 && sizeof(Range) == 72);
static_assert(sizeof(Sample) == 16 && sizeof(Schema) == 48 && sizeof(SchemaEntry) == 56 &&
              sizeof(Resource) == 24);
static_assert(sizeof(StackNode) == 32 && sizeof(Thread) == 8 && sizeof(Clock) == 16 &&
              sizeof(Diagnostic) == 16);

// CRC-32C, eight bytes at a time, by the processor where it can: in tables it was nearly half of what writing
// a launch cost.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0);
    tables[0][i] = value;
  }
  for (size_t t = 1; t < 8; ++t) {
    for (uint32_t i = 0; i < 256; ++i) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
    }
  }
  return tables;
}

uint32_t crc_by_tables(uint32_t crc, const uint8_t* p, size_t bytes) {
  static constexpr CrcTables t = make_crc_tables();
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= crc;
    crc = t[7][low & 0xff] ^ t[6][(low >> 8) & 0xff] ^ t[5][(low >> 16) & 0xff] ^ t[4][low >> 24] ^
          t[3][high & 0xff] ^ t[2][(high >> 8) & 0xff] ^ t[1][(high >> 16) & 0xff] ^ t[0][high >> 24];
  }
  for (; bytes; --bytes, ++p) crc = (crc >> 8) ^ t[0][(crc ^ *p) & 0xff];
  return crc;
}

__attribute__((target("sse4.2"))) uint32_t crc_by_processor(uint32_t crc, const uint8_t* p, size_t bytes) {
  uint64_t sum = crc;
  for (uint64_t word; bytes >= 8; bytes -= 8, p += 8) {
    std::memcpy(&word, p, 8);
    sum = __builtin_ia32_crc32di(sum, word);
  }
  crc = static_cast<uint32_t>(sum);
  for (; bytes; --bytes, ++p) crc = __builtin_ia32_crc32qi(crc, *p);
  return crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t so_far = 0) {
  static const bool known = __builtin_cpu_supports("sse4.2");
  const auto* p = static_cast<const uint8_t*>(data);
  return ~(known ? crc_by_processor(~so_far, p, bytes) : crc_by_tables(~so_far, p, bytes));
}

// Over the header's other fields and the payload: a damaged kind or size must not pass either.
uint32_t block_crc(const BlockHeader& header, const void* payload) {
  return crc32c(payload, header.payload_bytes, crc32c(&header, offsetof(BlockHeader, crc)));
}

void put_text(std::vector<char>& out, std::string_view text) {
  const auto length = static_cast<uint32_t>(text.size());
  const auto* bytes = reinterpret_cast<const char*>(&length);
  out.insert(out.end(), bytes, bytes + sizeof length);
  out.insert(out.end(), text.begin(), text.end());
}

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

}  // namespace

std::string Writer::open(const std::string& path, const Header& header) {
  std::lock_guard lock(mutex_);
  struct stat old;
  // Truncated, a file keeps its mode and whoever has it open.
  if (::lstat(path.c_str(), &old) == 0 && S_ISREG(old.st_mode)) ::unlink(path.c_str());
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (file_ < 0) return "cannot write " + path + ": " + std::strerror(errno);
  error_ = 0;
  bytes_written_ = bytes_lost_ = 0;
  next_string_ = 0;
  strings_.clear();
  pending_strings_.clear();
  write_block(Kind::kHeader, sizeof header, &header, sizeof header);
  return error_ ? "cannot write " + path + ": " + std::strerror(error_) : "";
}

void Writer::close() noexcept {
  std::lock_guard lock(mutex_);
  if (file_ < 0) return;
  write_pending_strings();
  ::close(file_);
  file_ = -1;
}

void Writer::forget() noexcept {
  // No lock: the thread that held it does not exist in a forked child.
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

uint32_t Writer::intern(std::string_view text) noexcept try {
  std::lock_guard lock(mutex_);
  std::string key(text);
  if (auto found = strings_.find(key); found != strings_.end()) return found->second;
  if (strings_.size() >= kStringsRemembered) strings_.clear();
  // The last that may throw comes first: the number of a text is its place in the file.
  const size_t room = pending_strings_.size() + sizeof(uint32_t) + text.size();
  if (pending_strings_.capacity() < room) pending_strings_.reserve(2 * room);
  strings_.emplace(std::move(key), next_string_);
  put_text(pending_strings_, text);
  return next_string_++;
} catch (...) {
  return kNone;
}

void Writer::meta(std::string_view name, std::string_view value) noexcept try {
  std::vector<char> entry;
  put_text(entry, name);
  put_text(entry, value);
  append_bytes(Kind::kMeta, 1, entry.data(), entry.size());
} catch (...) {
  ++bytes_lost_;
}

void Writer::diagnostic(uint64_t time_ns, uint32_t severity, std::string_view text) noexcept try {
  append(Kind::kDiagnostic, std::vector{Diagnostic{time_ns, severity, intern(text)}});
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

void Writer::write_block(Kind kind, size_t record_bytes, const void* data, size_t bytes) noexcept {
  if (file_ < 0 || error_) {
    bytes_lost_ += bytes;
    return;
  }
  BlockHeader header{kMagic, static_cast<uint16_t>(kind), static_cast<uint16_t>(record_bytes),
                     static_cast<uint32_t>(bytes), 0};
  header.crc = block_crc(header, data);
  const auto write_all = [this](const void* from, size_t left) {
    const auto* at = static_cast<const char*>(from);
    while (left) {
      const ssize_t done = ::write(file_, at, left);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) {
        error_ = errno;
        return;
      }
      at += done;
      left -= static_cast<size_t>(done);
    }
  };
  write_all(&header, sizeof header);
  if (!error_) write_all(data, bytes);
  (error_ ? bytes_lost_ : bytes_written_) += bytes;
}

// Room for what the blocks promise, so that a large capture is not copied again and again while it grows.
void reserve(std::ifstream& file, Contents& contents) {
  std::map<Kind, size_t> bytes;
  const auto size = static_cast<std::streamoff>(file.seekg(0, std::ios::end).tellg());
  BlockHeader header;
  for (std::streamoff at = 0; file.seekg(at) && file.read(reinterpret_cast<char*>(&header), sizeof header);) {
    at += static_cast<std::streamoff>(sizeof header) + header.payload_bytes;
    if (header.magic != kMagic || header.payload_bytes > kLargestBlock || at > size) break;
    const auto kind = static_cast<Kind>(header.kind);
    const bool is_text = kind == Kind::kHeader || kind == Kind::kMeta || kind == Kind::kStrings;
    if (!is_text) bytes[kind] += header.payload_bytes;
  }
  for (const auto& [kind, count] : bytes) contents.records[kind].reserve(count);
  file.clear();
  file.seekg(0);
}

Contents read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
  Contents contents;
  reserve(file, contents);
  std::vector<char> payload;
  bool opened = false;
  while (true) {
    const auto block_start = file.tellg();
    BlockHeader header;
    bool whole = static_cast<bool>(file.read(reinterpret_cast<char*>(&header), sizeof header)) &&
                 header.magic == kMagic && header.payload_bytes <= kLargestBlock;
    if (whole) {
      payload.resize(header.payload_bytes);
      whole = static_cast<bool>(file.read(payload.data(), header.payload_bytes)) &&
              block_crc(header, payload.data()) == header.crc;
    }
    if (!whole) {
      file.clear();
      file.seekg(0, std::ios::end);
      contents.unreadable_bytes = static_cast<uint64_t>(file.tellg() - block_start);
      break;
    }
    const auto kind = static_cast<Kind>(header.kind);
    const char* at = payload.data();
    const char* end = at + payload.size();
    if (!opened) {
      if (kind != Kind::kHeader || payload.size() < sizeof(Header)) break;
      std::memcpy(&contents.header, at, sizeof(Header));
      if (contents.header.version != kFormatVersion) {
        throw std::runtime_error(path + " was written by another version: its format is " +
                                 std::to_string(contents.header.version) + ", this one reads " +
                                 std::to_string(kFormatVersion));
      }
      opened = true;
    } else if (kind == Kind::kStrings) {
      for (std::string text; take_text(at, end, &text);) contents.strings.push_back(std::move(text));
    } else if (kind == Kind::kMeta) {
      for (std::string name, value; take_text(at, end, &name) && take_text(at, end, &value);) {
        contents.meta[name] = value;
      }
    } else {
      auto& records = contents.records[kind];
      records.insert(records.end(), at, end);
    }
  }
  if (!opened) throw std::runtime_error(path + " is not a capture of the recorder");
  return contents;
}

}  // namespace plab::trace::spool
