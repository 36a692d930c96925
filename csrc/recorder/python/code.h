// SPDX-License-Identifier: Apache-2.0
// What a code object says about itself, read without the GIL. All of it is immutable, and the frame that
// executes the code keeps it alive; nothing here touches a reference count.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

namespace plab::recorder::python_code {

bool is_code(const PyCodeObject* code);
std::string file(const PyCodeObject* code);
std::string function(const PyCodeObject* code);  // qualified from 3.11 on
int32_t first_line(const PyCodeObject* code);
int32_t line(const PyCodeObject* code, int32_t offset);  // of the instruction at a byte offset; 0: none

// Equal for two code objects only if file, function and line table are equal. The address alone is not enough: it
// may be reused as soon as the first object is freed.
uint64_t content(const PyCodeObject* code);

}  // namespace plab::recorder::python_code
