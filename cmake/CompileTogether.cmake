# SPDX-License-Identifier: Apache-2.0
# Files that are compiled as one, because most of the time that a small file takes is its headers: two thirds for a
# binding, which has pybind11's, half for the rest, more for CUDA. None may repeat another's names.

# plab_together(result name.extension source...): a file that includes the sources.
function(plab_together result name)
  set(_text "")
  foreach(_source IN LISTS ARGN)
    get_filename_component(_path "${_source}" ABSOLUTE)
    string(APPEND _text "#include \"${_path}\"\n")
  endforeach()
  set(_file ${CMAKE_CURRENT_BINARY_DIR}/${name})
  file(CONFIGURE OUTPUT ${_file} CONTENT "${_text}" @ONLY)
  set(${result} ${_file} PARENT_SCOPE)
endfunction()

# plab_compile_together(target group source... [OPTIONS option...]): some C++ sources of a target.
function(plab_compile_together target group)
  cmake_parse_arguments(PARSE_ARGV 2 _arg "" "" "OPTIONS")
  plab_together(_one ${target}_${group}.cpp ${_arg_UNPARSED_ARGUMENTS})
  set_source_files_properties(${_arg_UNPARSED_ARGUMENTS} PROPERTIES HEADER_FILE_ONLY ON)
  set_source_files_properties(${_one} PROPERTIES COMPILE_OPTIONS "${_arg_OPTIONS}")
  target_sources(${target} PRIVATE ${_one})
endfunction()
