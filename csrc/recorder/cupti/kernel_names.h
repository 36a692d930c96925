// SPDX-License-Identifier: Apache-2.0
// Readable kernel names.
#pragma once

#include <string>

namespace plab::recorder {

// "_ZN2at6native4fillIfEEvPT_i" -> "void at::native::fill<float>(float*, int)"; a name that is not mangled
// (a Triton or extern "C" kernel) stays as it is.
std::string demangle(const std::string& name);

// "void at::native::fill<float>(float*, int)" -> "fill": without return type, namespaces, template and
// function parameters.
std::string short_name(const std::string& demangled);

}  // namespace plab::recorder
