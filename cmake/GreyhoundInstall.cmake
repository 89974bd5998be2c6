# Installation: headers, libraries, find_package(greyhound CONFIG) and a pkg-config file. Everything is relative to the
# prefix, which may be moved afterwards.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(GREYHOUND_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/greyhound)
set(libraries greyhound_core greyhound_kernels greyhound_loss)

set(rpath $ORIGIN)
if(GREYHOUND_HAVE_CUDA)
  list(APPEND rpath ${CUDAToolkit_LIBRARY_DIR})  # a toolkit that the system's loader does not know
endif()
set_target_properties(${libraries} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  INSTALL_RPATH "${rpath}")
install(TARGETS ${libraries} EXPORT greyhoundTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

# Communicators, apart from the rest: importers of the loss need neither MPI nor NCCL.
set(GREYHOUND_HAVE_COMM OFF)
if(GREYHOUND_HAVE_MPI OR GREYHOUND_HAVE_NCCL)
  set(GREYHOUND_HAVE_COMM ON)
  install(TARGETS greyhound_comm EXPORT greyhoundCommTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT greyhoundCommTargets NAMESPACE greyhound:: DESTINATION ${GREYHOUND_CMAKE_DIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/core/comm/communicator.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/greyhound/core/comm)  # loss/ranks.h takes any communicator

# Public headers stand beside their sources; a header for the library's own use says "Internal" in its first lines.
set(layers core kernels loss)
if(GREYHOUND_HAVE_COMM)
  list(APPEND layers core/comm)
endif()
foreach(layer IN LISTS layers)
  set(patterns ${PROJECT_SOURCE_DIR}/${layer}/*.h)
  if(GREYHOUND_HAVE_CUDA)  # for nvcc, and what those headers are made of
    list(APPEND patterns ${PROJECT_SOURCE_DIR}/${layer}/*.cuh ${PROJECT_SOURCE_DIR}/${layer}/cuda/*.h
      ${PROJECT_SOURCE_DIR}/${layer}/cuda/*.cuh)
  endif()
  file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${patterns})
  foreach(header IN LISTS headers)
    file(READ ${PROJECT_SOURCE_DIR}/${header} beginning LIMIT 600)
    if(NOT beginning MATCHES "Internal")
      cmake_path(GET header PARENT_PATH folder)
      install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/greyhound/${folder})
    endif()
  endforeach()
endforeach()
install(FILES ${GREYHOUND_GENERATED_DIR}/greyhound/core/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/greyhound/core)

install(EXPORT greyhoundTargets NAMESPACE greyhound:: DESTINATION ${GREYHOUND_CMAKE_DIR})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/greyhoundConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/greyhoundConfig.cmake INSTALL_DESTINATION ${GREYHOUND_CMAKE_DIR})
# Until 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/greyhoundConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/greyhoundConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/greyhoundConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/third_party/FindGreyhoundOneDNN.cmake DESTINATION ${GREYHOUND_CMAKE_DIR})

# pkg-config, for projects that are built with make. A static library brings what it was linked with.
set(GREYHOUND_PC_LIBS "")
set(GREYHOUND_PC_CFLAGS "")
if(GREYHOUND_HAVE_CUDA)
  foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS)
    string(APPEND GREYHOUND_PC_CFLAGS " -I${folder}")
  endforeach()
  if(BUILD_SHARED_LIBS)
    string(APPEND GREYHOUND_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart")  # the runtime that these libraries use
  endif()
endif()
if(NOT BUILD_SHARED_LIBS)
  if(GREYHOUND_HAVE_ONEDNN)
    string(APPEND GREYHOUND_PC_LIBS " -ldnnl")
  endif()
  if(GREYHOUND_HAVE_OPENMP)
    string(APPEND GREYHOUND_PC_LIBS " -lgomp")
  endif()
  if(GREYHOUND_HAVE_CUDA)
    string(APPEND GREYHOUND_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart_static -ldl -lrt")
  endif()
  string(APPEND GREYHOUND_PC_LIBS " -lpthread")
endif()
file(RELATIVE_PATH GREYHOUND_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(${PROJECT_SOURCE_DIR}/cmake/greyhound.pc.in ${CMAKE_CURRENT_BINARY_DIR}/greyhound.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/greyhound.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
