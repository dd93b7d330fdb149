# `cmake --build build --target deb` makes build/weft_VERSION_ARCH.deb, the program with its models, and
# build/libweft-dev_VERSION_ARCH.deb, what find_package(weft) takes. It needs the packages of `apps/setup.sh package`.
# With WEFT_CUDA they are weft-cuda and libweft-cuda-dev, which take the place of the others.
set(CPACK_GENERATOR DEB)
if(WEFT_CUDA)
  set(weft_cuda -cuda)
  foreach(field PROVIDES CONFLICTS REPLACES)
    set(CPACK_DEBIAN_PROGRAM_PACKAGE_${field} weft)
    set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_${field} libweft-dev)
  endforeach()
  # These packages are not Debian's. A toolkit that no package owns adds nothing to the dependencies.
  set(weft_recommended libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}
    libcudnn9-cuda-${CUDAToolkit_VERSION_MAJOR} libnccl2)
  set(cuda_description "\nRuns on NVIDIA GPUs with cuBLASLt of CUDA ${CUDAToolkit_VERSION_MAJOR}, cuDNN 9 and NCCL, which
NVIDIA's repository for apt has. Without a GPU it runs on processors.\n")
endif()
set(CPACK_PACKAGE_NAME weft${weft_cuda})
set(CPACK_PACKAGE_CONTACT "The Weft authors <authors@weft.invalid>")
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME weft${weft_cuda})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION graphics)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "video and images from text with diffusion transformers
Weft generates clips and pictures with Wan 2.1 and Wan 2.2 models, on one
processor or split over many. A small model is part of the package: try
weft generate --model pocket --prompt 'a big red ball, moving left'
${cuda_description}
License: Apache-2.0; /usr/share/doc/weft/NOTICE has those of the libraries.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libweft${weft_cuda}-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION [[
video and images from text with diffusion transformers (library)
The static libraries and headers of Weft, its CMake package and an example.

License: Apache-2.0; /usr/share/doc/weft/NOTICE has those of the libraries.]])
set(weft_development libdnnl-dev ocl-icd-opencl-dev opencl-c-headers libhwy-dev nlohmann-json3-dev
  libsentencepiece-dev libicu-dev libonig-dev libssl-dev libsqlite3-dev pkg-config)
if(WEFT_MEDIA)
  list(APPEND weft_development libavcodec-dev libavfilter-dev libavformat-dev libavutil-dev libswresample-dev libswscale-dev
    libpng-dev libjpeg62-turbo-dev libwebp-dev)
endif()
if(OMPI_FOUND)
  list(APPEND weft_development libopenmpi-dev)
  list(APPEND weft_recommended openmpi-bin)  # mpirun, for ranks that are processes
endif()
if(UCX_FOUND)
  list(APPEND weft_recommended libucx0)  # for processes without mpirun
endif()
list(JOIN weft_recommended ", " CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS)
list(JOIN weft_development ", " weft_development)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "weft${weft_cuda} (= ${PROJECT_VERSION}), ${weft_development}")
include(CPack)

add_custom_target(deb DEPENDS weft VERBATIM COMMAND ${CMAKE_CPACK_COMMAND} -G DEB
  WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
