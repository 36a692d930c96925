// SPDX-License-Identifier: Apache-2.0
#include "recorder/cupti/kernel_names.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

namespace plab::recorder {

std::string demangle(const std::string& name) {
  if (name.compare(0, 2, "_Z") != 0) return name;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : name;
}

std::string short_name(const std::string& demangled) {
  // The name's last part ends at the first '<' or '(' outside of brackets that does not itself belong to a
  // scope: "(anonymous namespace)::" and "f<int>::g" go on after it.
  std::string part;
  int depth = 0;
  for (size_t i = 0; i < demangled.size(); ++i) {
    const char c = demangled[i];
    if (c == '<' || c == '(') {
      ++depth;
    } else if (c == '>' || c == ')') {
      --depth;
      if (depth != 0) continue;
      const bool scope_follows = demangled.compare(i + 1, 2, "::") == 0;
      const bool parameters_follow = c == '>' && (i + 1 == demangled.size() || demangled[i + 1] == '(');
      if (!scope_follows && (c == ')' || parameters_follow)) break;
    } else if (depth == 0) {
      if (c == ' ' || (c == ':' && i + 1 < demangled.size() && demangled[i + 1] == ':')) {
        part.clear();
        if (c == ':') ++i;
      } else {
        part += c;
      }
    }
  }
  return part.empty() ? demangled : part;
}

}  // namespace plab::recorder
