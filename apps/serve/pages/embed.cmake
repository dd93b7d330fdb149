# weft_embed_pages(<target> <files...>): an object library that defines page_files() (apps/serve/page_routes.h), the
# files' bytes and their hashes. It is built again when one of them changes.
function(weft_embed_pages target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cc)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/ OUTPUT_VARIABLE files)
  string(REPLACE ";" "," listed "${files}")
  add_custom_command(OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DFILES=${listed} -DSOURCE=${source} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    DEPENDS ${files} ${CMAKE_CURRENT_FUNCTION_LIST_FILE} VERBATIM COMMENT "Embedding the pages")
  add_library(${target} OBJECT ${source})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

string(REPLACE "," ";" files "${FILES}")
set(code "#include \"apps/serve/page_routes.h\"\n\nnamespace weft {\n\nstd::span<const PageFile> page_files() {\n")
string(APPEND code "  static constexpr PageFile kFiles[] = {\n")
foreach(path IN LISTS files)
  cmake_path(GET path FILENAME name)
  file(READ "${path}" bytes)
  file(SHA256 "${path}" hash)
  string(SUBSTRING ${hash} 0 32 hash)
  string(FIND "${bytes}" ")weft-page\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${path} holds the characters that end a raw string here: )weft-page\"")
  endif()
  string(APPEND code "      {\"${name}\", \"\\\"${hash}\\\"\", R\"weft-page(${bytes})weft-page\"},\n")
endforeach()
string(APPEND code "  };\n  return kFiles;\n}\n\n}  // namespace weft\n")
file(WRITE "${SOURCE}" "${code}")
