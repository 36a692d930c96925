// SPDX-License-Identifier: Apache-2.0
// Code that does nothing but take the place of other code in the caches.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr size_t kOtherBytes = size_t{64} << 20, kCodeStep = 64;

// A function of that size that runs through its first n cache lines: in each it counts n down, returns at 0, and
// else jumps to the next.
using Code = void (*)(uint64_t lines);
Code other_code_of(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* code = static_cast<uint8_t*>(memory);
  // dec rdi; jz +2; jmp +56; ret
  constexpr uint8_t kLine[] = {0x48, 0xff, 0xcf, 0x74, 0x02, 0xeb, 0x39, 0xc3};
  for (size_t at = 0; at < bytes; at += kCodeStep) std::memcpy(code + at, kLine, sizeof kLine);
  code[bytes - kCodeStep + 5] = 0xc3;
  mprotect(memory, bytes, PROT_READ | PROT_EXEC);
  return reinterpret_cast<Code>(memory);
}

}  // namespace
