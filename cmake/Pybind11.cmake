# SPDX-License-Identifier: Apache-2.0
# pybind11 for _analysis and _recorder, from a place that stays.
#
# pip builds in an isolated environment with a new name each time, so every -I that leads into it changes, and every
# file that includes pybind11 would be compiled again. The headers are copied beside the objects instead, and a copy
# is only touched where its text differs.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT DEFINED CMAKE_INTERPROCEDURAL_OPTIMIZATION)
  set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF) # else pybind11 compiles and links programs to see what the compiler can do
endif()
find_package(pybind11 CONFIG QUIET)
if(NOT pybind11_FOUND) # pip tells CMake where its packages are; a developer's `cmake --preset dev` has only Python to ask
  execute_process(COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
    OUTPUT_VARIABLE pybind11_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_package(pybind11 CONFIG REQUIRED)
endif()

set(_copy "${PROJECT_BINARY_DIR}/pybind11_headers")
file(GLOB_RECURSE _headers RELATIVE "${pybind11_INCLUDE_DIR}" "${pybind11_INCLUDE_DIR}/pybind11/*.h")
foreach(_header IN LISTS _headers)
  get_filename_component(_folder "${_copy}/${_header}" DIRECTORY)
  file(MAKE_DIRECTORY "${_folder}")
  file(COPY_FILE "${pybind11_INCLUDE_DIR}/${_header}" "${_copy}/${_header}" ONLY_IF_DIFFERENT)
endforeach()
set_target_properties(pybind11::pybind11_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${_copy}")

# plab_python_module(name source...): a module that exports its init function and `EXPORTS` alone.
function(plab_python_module name)
  cmake_parse_arguments(PARSE_ARGV 1 _arg "" "" "EXPORTS;SOURCES")
  # NO_EXTRAS: link-time optimisation of everything at once took a third of the build for nothing that was measured.
  pybind11_add_module(${name} MODULE NO_EXTRAS ${_arg_SOURCES})
  # pybind11 shares its registry with every other module of the same compiler and version in the process, torch's
  # included: C++ containers that two libraries then change. A name of our own keeps ours to ourselves.
  target_compile_definitions(${name} PRIVATE PYBIND11_COMPILER_TYPE="_profiling_lab")
  plab_export_only(${name} PyInit_${name} ${_arg_EXPORTS})
  plab_install(${name})
endfunction()
