# SPDX-License-Identifier: Apache-2.0
# plab_compile_together(target group source...): the sources as one file. Most of the time that a small file takes is its
# headers: two thirds for a binding, which has pybind11's, half for the rest. None may repeat another's names.
function(plab_compile_together target group)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
endfunction()
