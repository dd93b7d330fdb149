# weft_add_commit(<target>): an object library that defines kCommit (commit.h). Every build asks git for the commit;
# the library is compiled again, and programs are linked again, only when the commit has changed.
function(weft_add_commit target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/commit.cc)
  add_custom_target(${target}_source BYPRODUCTS ${source}
    COMMAND ${CMAKE_COMMAND} -DCHECKOUT=${PROJECT_SOURCE_DIR} -DSOURCE=${source}
            -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    COMMENT "")
  add_library(${target} OBJECT ${source})
  add_dependencies(${target} ${target}_source)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

# The prefix is empty where CHECKOUT is the repository itself, not a folder inside another one. A checkout that belongs
# to another user is named too: reading its commit runs nothing of it.
execute_process(COMMAND git -c safe.directory=${CHECKOUT} rev-parse --show-prefix --short HEAD
  WORKING_DIRECTORY ${CHECKOUT} OUTPUT_VARIABLE answer ERROR_QUIET RESULT_VARIABLE result)
set(commit unknown)
if(result STREQUAL 0 AND answer MATCHES "^\n([0-9a-f]+)\n$")
  set(commit ${CMAKE_MATCH_1})
endif()
file(CONFIGURE OUTPUT ${SOURCE} @ONLY CONTENT
[[#include "apps/commit.h"
const char* const weft::kCommit = "@commit@";
]])
