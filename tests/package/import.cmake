# cmake -DKIND=static|shared|shared_cuda|subdirectory ... -P import.cmake: another project imports Greyhound.
#   static        this build, with CUDA if it has that, installed and moved; find_package and pkg-config; the programs of
#                 the documentation
#   shared        the loss module alone as shared libraries, without CUDA, installed and moved
#   shared_cuda   the same with CUDA
#   subdirectory  the source tree by add_subdirectory

cmake_minimum_required(VERSION 3.25)

# What is tested is importing, not speed: libraries that are built here are built without optimisation, which is quick.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " line)
    message(FATAL_ERROR "${line}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
set(configure ${CMAKE_COMMAND} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
  -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
set(cuda OFF)  # does what is imported have the CUDA backend?
if(KIND STREQUAL "shared_cuda" OR (KIND STREQUAL "static" AND HAVE_CUDA))
  set(cuda ON)
  list(APPEND configure -DCMAKE_CUDA_COMPILER=${NVCC} -DCMAKE_CUDA_COMPILER_LAUNCHER=${LAUNCHER}
    -DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURE})
endif()

if(KIND STREQUAL "subdirectory")
  run(${configure} -S ${SOURCE_DIR}/tests/package/subdirectory -B ${WORK_DIR}/build -DGREYHOUND_SOURCE_DIR=${SOURCE_DIR}
    -DGREYHOUND_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
  run(${WORK_DIR}/build/minimal_cpu)
  message(STATUS "${output}")
  return()
endif()

# Install, and move what was installed.
if(KIND MATCHES "shared")
  run(${configure} -S ${SOURCE_DIR} -B ${WORK_DIR}/library -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_TYPE=Debug
    -DGREYHOUND_BUILD_TRAINER=OFF -DGREYHOUND_BUILD_TESTS=OFF -DGREYHOUND_CUDA=${cuda} -DGREYHOUND_MPI=OFF)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/library)
  set(BUILD_DIR ${WORK_DIR}/library)
endif()
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/installed)
set(prefix ${WORK_DIR}/moved/away)
file(MAKE_DIRECTORY ${WORK_DIR}/moved)
file(RENAME ${WORK_DIR}/installed ${prefix})

# No path of the build, the source or the first prefix may remain in what CMake and pkg-config read.
file(GLOB_RECURSE texts ${prefix}/*.cmake ${prefix}/*.pc ${prefix}/*.h ${prefix}/*.cuh)
if(NOT texts)
  message(FATAL_ERROR "nothing was installed")
endif()
foreach(text IN LISTS texts)
  file(READ ${text} content)
  foreach(path IN ITEMS ${BUILD_DIR} ${SOURCE_DIR} ${WORK_DIR}/installed)
    string(FIND "${content}" "${path}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "${text} holds the path ${path}")
    endif()
  endforeach()
endforeach()

run(${configure} -S ${SOURCE_DIR}/examples -B ${WORK_DIR}/examples -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/examples)
set(examples minimal_cpu custom_loss logprobs)
if(cuda)
  list(APPEND examples minimal_cuda custom_loss_cuda llmc_head)  # on a machine without a GPU they say so
endif()
foreach(example IN LISTS examples)
  run(${WORK_DIR}/examples/${example})
  message(STATUS "${example}: ${output}")
endforeach()

# One rank, and two under mpirun, print the same.
if(EXISTS ${WORK_DIR}/examples/two_ranks AND KIND STREQUAL "static")
  foreach(variable IN ITEMS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe)
    set(ENV{${variable}} 1)  # more ranks than cores, and root
  endforeach()
  run(${WORK_DIR}/examples/two_ranks)
  set(alone "${output}")
  find_program(mpiexec NAMES mpirun mpiexec REQUIRED)
  run(${mpiexec} -np 2 ${WORK_DIR}/examples/two_ranks)
  if(NOT output STREQUAL alone OR NOT output MATCHES "step 5: loss")
    message(FATAL_ERROR "one rank printed\n${alone}\nand two\n${output}")
  endif()
  message(STATUS "two_ranks: ${output}")
endif()

# Every installed header compiles by itself as C++17.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/greyhound/*.h ${prefix}/include/greyhound/*.cuh)
set(toolkit "")
if(cuda)
  cmake_path(GET NVCC PARENT_PATH toolkit)
  set(toolkit -isystem ${toolkit}/../include)
endif()
foreach(header IN LISTS headers)
  if(header MATCHES "cuh$")
    file(WRITE ${WORK_DIR}/header.cu "#include <${header}>\n")
    run(${NVCC} -std=c++17 -Werror=all-warnings -arch=sm_80 -cubin -I${prefix}/include -o ${WORK_DIR}/header.cubin
      ${WORK_DIR}/header.cu)
  else()
    file(WRITE ${WORK_DIR}/header.cpp "#include <${header}>\n")
    run(${CXX} -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I${prefix}/include ${toolkit} ${WORK_DIR}/header.cpp)
  endif()
endforeach()

if(cuda)
  if(NOT EXISTS ${prefix}/include/greyhound/loss/row_loss.cuh)
    message(FATAL_ERROR "loss/row_loss.cuh was not installed")
  endif()
  # A project without the language CUDA links it too.
  run(${configure} -S ${SOURCE_DIR}/tests/package/docs -B ${WORK_DIR}/no_nvcc -DCMAKE_PREFIX_PATH=${prefix}
    -DPROGRAMS=${SOURCE_DIR}/examples)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/no_nvcc --target minimal_cuda)
  run(${WORK_DIR}/no_nvcc/minimal_cuda)
endif()

# One CUDA runtime in a program: shared libraries and what links them have none inside.
if(KIND STREQUAL "shared_cuda")
  find_program(nm nm REQUIRED)
  file(GLOB binaries ${prefix}/lib*/libgreyhound_*.so ${prefix}/lib*/*/libgreyhound_*.so)
  list(LENGTH binaries count)
  if(NOT count EQUAL 3)
    message(FATAL_ERROR "expected three shared libraries, got ${binaries}")
  endif()
  foreach(binary IN LISTS binaries ITEMS ${WORK_DIR}/no_nvcc/minimal_cuda ${WORK_DIR}/examples/custom_loss_cuda)
    run(${nm} ${binary})
    if(output MATCHES " [tT] cudaGetDevice")
      message(FATAL_ERROR "${binary} has a CUDA runtime of its own")
    endif()
  endforeach()
endif()

# The importer keeps its own flags, and sees none of the trainer's headers.
file(READ ${WORK_DIR}/examples/compile_commands.json commands)
foreach(flag IN ITEMS -fopenmp -march -Wall -Wextra -O3 -O2 -ffast-math -fno-math-errno spdlog yaml-cpp fvisibility)
  string(FIND "${commands}" "${flag}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "the importer is compiled with ${flag}:\n${commands}")
  endif()
endforeach()

# Every complete program of the documentation compiles, runs, and prints what its page says.
if(KIND STREQUAL "static")
  include(${SOURCE_DIR}/tests/package/docs/programs.cmake)
  file(GLOB pages RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/docs/loss.md ${SOURCE_DIR}/docs/import.md
    ${SOURCE_DIR}/docs/operations/*.md)
  extract_programs(${SOURCE_DIR} ${WORK_DIR}/docs programs "${pages}")
  list(LENGTH programs count)
  if(count LESS 9)
    message(FATAL_ERROR "only ${count} complete programs in ${pages}; expected 9, one per operation and two")
  endif()
  run(${configure} -S ${SOURCE_DIR}/tests/package/docs -B ${WORK_DIR}/docs/build -DCMAKE_PREFIX_PATH=${prefix}
    -DPROGRAMS=${WORK_DIR}/docs)
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/docs/build)
  foreach(program IN LISTS programs)
    check_program(${WORK_DIR}/docs ${program})
  endforeach()
endif()

# The one line of a project that is built with make.
find_program(pkg_config pkg-config)
if(NOT pkg_config)
  message(STATUS "skipped: no pkg-config")
  return()
endif()
file(GLOB_RECURSE pc ${prefix}/*/greyhound.pc)
cmake_path(GET pc PARENT_PATH pc_folder)
set(ENV{PKG_CONFIG_PATH} ${pc_folder})
run(${pkg_config} --cflags --libs greyhound)
separate_arguments(flags UNIX_COMMAND "${output}")
cmake_path(GET pc_folder PARENT_PATH library_folder)
set(ENV{LD_LIBRARY_PATH} ${library_folder}:$ENV{LD_LIBRARY_PATH})
set(programs minimal_cpu)
if(cuda)
  list(APPEND programs minimal_cuda)
endif()
foreach(program IN LISTS programs)
  run(${CXX} -std=c++17 ${SOURCE_DIR}/examples/${program}.cpp -o ${WORK_DIR}/with_pkg_config ${flags})
  run(${WORK_DIR}/with_pkg_config)
  message(STATUS "with pkg-config: ${output}")
endforeach()
