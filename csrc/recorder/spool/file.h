// SPDX-License-Identifier: Apache-2.0
// The descriptor of the capture file, in a program that may close it at any time.
//
// Programs that become daemons close every descriptor, and the next file they open gets our number. So the
// descriptor has a high number, and its file is checked before each use. Another program's file is never written to
// and never closed.
#pragma once

#include <sys/types.h>

#include <string>

namespace plab::recorder::spool {

class SpoolFile {
 public:
  SpoolFile() = default;
  ~SpoolFile() { close(); }
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  // A duplicate of `file`, which is at `path`; for -1 a new, locked file, where no file existed before. Returns 0 or
  // errno.
  int open(const std::string& path, int file);

  // The descriptor; -1: the program closed it, and the file is no longer at its path. Opens it again if it
  // is.
  int get() noexcept;
  bool is_open() const { return file_ >= 0; }
  void close() noexcept;
  void remove() noexcept;  // delete the file, unless another is at its path

 private:
  bool is_ours(int file) const noexcept;
  bool is_at_path() const noexcept;

  std::string path_;
  int file_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace plab::recorder::spool
