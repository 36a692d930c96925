// SPDX-License-Identifier: Apache-2.0
#include "recorder/spool/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace plab::recorder::spool {
namespace {

constexpr int kHigh = 4000;  // above what select() takes, and what is commonly closed by number

// A duplicate with the highest possible number, or -1.
int duplicate_high(int file) {
  rlimit limit{};
  int most = 1024;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 1 << 20)
    most = static_cast<int>(limit.rlim_cur);
  for (const int least : {kHigh, most - 24, 512, 64, 3}) {
    if (least < 3 || (least >= most && limit.rlim_cur < 1 << 20)) continue;
    if (const int high = fcntl(file, F_DUPFD_CLOEXEC, least); high >= 0) return high;
  }
  return -1;
}

}  // namespace

int SpoolFile::open(const std::string& path, int file) {
  close();
  path_ = path;
  const bool created = file < 0;
  if (created) {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC;
    file = ::open(path.c_str(), kFlags, 0600);
    if (file < 0) return errno;
    ::flock(file, LOCK_EX | LOCK_NB);
  }
  struct stat facts;
  const int high = duplicate_high(file);
  const int error = high < 0 || ::fstat(high, &facts) != 0 ? errno : 0;
  if (created) ::close(file);
  if (error) return error;
  file_ = high;
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  return 0;
}

bool SpoolFile::is_ours(int file) const noexcept {
  struct stat facts;
  return file >= 0 && ::fstat(file, &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
}

bool SpoolFile::is_at_path() const noexcept {
  struct stat facts;
  return ::lstat(path_.c_str(), &facts) == 0 && facts.st_dev == device_ && facts.st_ino == inode_;
}

int SpoolFile::get() noexcept {
  if (file_ < 0 || is_ours(file_)) return file_;
  file_ = -1;
  if (!is_at_path()) return -1;
  // Not blocking: the path may be a pipe by now.
  const int file = ::open(path_.c_str(), O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return -1;
  // Closing the descriptor released the lock. A process that has taken it since owns the file now.
  const bool taken = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!taken && is_ours(file)) file_ = duplicate_high(file);
  ::close(file);
  return file_;
}

void SpoolFile::close() noexcept {
  if (is_ours(file_)) ::close(file_);
  file_ = -1;
}

void SpoolFile::remove() noexcept {
  if (is_at_path()) ::unlink(path_.c_str());
  close();
}

}  // namespace plab::recorder::spool
