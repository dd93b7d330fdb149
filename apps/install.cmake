# These rules fill `cmake --install` and the packages. The component "program" is enough to run weft; "development" adds what
# find_package(weft) takes.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(weft_models ${CMAKE_INSTALL_DATADIR}/weft)
set(weft_headers ${CMAKE_INSTALL_INCLUDEDIR}/weft)
set(weft_cmake ${CMAKE_INSTALL_LIBDIR}/cmake/weft)

# The program, its models, licences, manual and completions.
set_target_properties(weft PROPERTIES INSTALL_RPATH_USE_LINK_PATH ${WEFT_CUDA})  # CUDA may lie anywhere
install(TARGETS weft COMPONENT program)
install(DIRECTORY models/pocket models/pocket_avatar DESTINATION ${weft_models} COMPONENT program
  PATTERN recipe EXCLUDE PATTERN samples.png EXCLUDE PATTERN __pycache__ EXCLUDE)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/weft COMPONENT program)
install(FILES apps/job.schema.json apps/output.schema.json DESTINATION ${weft_models} COMPONENT program)
install(DIRECTORY apps/deploy DESTINATION ${weft_models} COMPONENT program PATTERN weft.service EXCLUDE)
install(FILES apps/deploy/weft.service DESTINATION lib/systemd/system COMPONENT program)  # also where libraries lie elsewhere
# Debian's name for it, in each package.
install(FILES NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/weft RENAME copyright COMPONENT program)
install(FILES NOTICE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libweft-dev RENAME copyright COMPONENT development)
foreach(text "man share/man/man1/weft.1" "bash share/bash-completion/completions/weft"
             "zsh share/zsh/vendor-completions/_weft" "fish share/fish/vendor_completions.d/weft.fish")
  string(REPLACE " " ";" text ${text})
  list(GET text 0 kind)
  list(GET text 1 path)
  install(CODE "
    set(path \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${path}\")
    cmake_path(GET path PARENT_PATH folder)
    file(MAKE_DIRECTORY \${folder})
    message(STATUS \"Installing: \${path}\")
    execute_process(COMMAND $<TARGET_FILE:weft> completion ${kind} OUTPUT_FILE \${path} COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT program)
endforeach()

# The libraries: one for each folder, and weft::weft, which stands for all of them.
set(weft_libraries kernels parallel io models engine)
foreach(folder ${weft_libraries})
  set_target_properties(weft_${folder} PROPERTIES EXPORT_NAME ${folder})
  install(TARGETS weft_${folder} EXPORT weft ARCHIVE COMPONENT development)
  install(DIRECTORY ${folder} DESTINATION ${weft_headers} COMPONENT development FILES_MATCHING PATTERN "*.h"
    PATTERN cpu EXCLUDE PATTERN cuda EXCLUDE PATTERN "pocket*" EXCLUDE PATTERN templates EXCLUDE
    PATTERN ffmpeg.h EXCLUDE PATTERN input_media.h EXCLUDE PATTERN output_media.h EXCLUDE PATTERN ucx_api.h EXCLUDE)  # need the headers of other libraries
endforeach()
install(CODE [[
  if(CMAKE_INSTALL_DO_STRIP)  # CMake strips programs alone
    file(GLOB libraries $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib*/libweft_*.a)
    execute_process(COMMAND strip --strip-debug ${libraries} COMMAND_ERROR_IS_FATAL ANY)
  endif()]] COMPONENT development)
# Programs include <weft/engine/generation/generator.h>; the headers name each other as "engine/job/request.h".
target_include_directories(weft_kernels INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}> $<INSTALL_INTERFACE:${weft_headers}>)
target_compile_features(weft_kernels INTERFACE cxx_std_20)
add_library(weft_library INTERFACE)
target_link_libraries(weft_library INTERFACE weft_engine)
set_target_properties(weft_library PROPERTIES EXPORT_NAME weft)
install(TARGETS weft_library EXPORT weft COMPONENT development)
install(EXPORT weft NAMESPACE weft:: FILE weft-targets.cmake DESTINATION ${weft_cmake} COMPONENT development)
if(TARGET NCCL::nccl)
  set(WEFT_NCCL ON)
endif()
configure_package_config_file(apps/weft-config.cmake.in ${PROJECT_BINARY_DIR}/weft-config.cmake
  INSTALL_DESTINATION ${weft_cmake} PATH_VARS weft_models NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weft-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake ${PROJECT_BINARY_DIR}/weft-config-version.cmake
  DESTINATION ${weft_cmake} COMPONENT development)
install(DIRECTORY apps/example DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/weft COMPONENT development)
