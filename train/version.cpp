#include <greyhound/train/version.h>

#include <greyhound/core/comm/launch.h>
#include <greyhound/core/context.h>
#include <greyhound/core/device_info.h>
#include <greyhound/core/version.h>
#include <greyhound/kernels/matmul.h>

#ifdef GREYHOUND_HAVE_CUDA
#include <cublasLt.h>
#endif
#ifdef GREYHOUND_HAVE_MPI
#include <mpi.h>
#endif

// This file is compiled with the instruction set of the CPU kernels. The GREYHOUND_HAVE_* of a build are defined for it
// alone: nothing else in the program depends on them.
namespace greyhound {

namespace {

std::string instruction_set() {
#if defined(__AVX512F__)
  std::string name = "AVX-512";
#if defined(__AVX512BF16__)
  name += " with bf16";
#endif
#if defined(__AMX_BF16__)
  name += " and AMX";
#endif
  return name;
#elif defined(__AVX2__)
  return "AVX2";
#elif defined(__SSE2__)
  return "SSE2";
#elif defined(__ARM_FEATURE_SVE)
  return "SVE";
#elif defined(__ARM_NEON)
  return "NEON";
#else
  return "the compiler's default instruction set";
#endif
}

std::string cpu_line() {
  const Context context = Context::cpu();
  std::string line = concat(instruction_set(), ", products by ", matmul_library(context), ", ");
#ifdef GREYHOUND_HAVE_OPENMP
  return concat(line, context.threads(), context.threads() == 1 ? " thread" : " threads", " of OpenMP");
#else
  return line + "1 thread (built without OpenMP)";
#endif
}

#ifdef GREYHOUND_HAVE_CUDA
std::string cuda_line() {
  const CudaVersions versions = cuda_versions();
  std::string line = concat("built with ", cuda_version_text(versions.built), " for ", GREYHOUND_CUDA_ARCHITECTURES,
                            "; run time ", cuda_version_text(versions.runtime));
  line += versions.driver > 0 ? concat(", driver for ", cuda_version_text(versions.driver)) : ", no driver found";
  if (const int devices = cuda_device_count(); devices > 0) {
    return concat(line, ", ", devices, " x ", cuda_device_info(0).name);
  }
  return concat(line, ", no device: ", cuda_unavailable_reason());
}

// 130002 is 13.0.2, as cuBLAS counts since version 12.
std::string cublaslt_version(std::size_t number) {
  return concat(number / 10000, ".", number % 10000 / 100, ".", number % 100);
}

std::string cublaslt_line() {
  return concat("built with ", cublaslt_version(CUBLAS_VERSION), "; run time ", cublaslt_version(cublasLtGetVersion()));
}
#else
std::string cuda_line() { return "not built"; }
std::string cublaslt_line() { return "not built"; }
#endif

// 22807 is 2.28.7, as NCCL counts.
std::string nccl_version(int number) { return concat(number / 10000, ".", number % 10000 / 100, ".", number % 100); }

std::string nccl_line() {
  if (nccl_built_version() == 0) return "not built";
  const int found = nccl_found_version();
  return concat("built with ", nccl_version(nccl_built_version()), "; run time ",
                found == 0 ? "none found" : nccl_version(found));
}

#ifdef GREYHOUND_HAVE_MPI
std::string mpi_line() {
  // Libraries describe themselves at length: "Open MPI v4.1.4, package: ..., ident: ...".
  const std::string found = mpi_library_version();
  std::string built = concat("MPI ", MPI_VERSION, ".", MPI_SUBVERSION);
#ifdef OMPI_MAJOR_VERSION
  built += concat(" (Open MPI ", OMPI_MAJOR_VERSION, ".", OMPI_MINOR_VERSION, ".", OMPI_RELEASE_VERSION, ")");
#endif
  return concat("built with ", built, "; run time ", found.substr(0, found.find_first_of(",\n")));
}
#else
std::string mpi_line() { return "not built"; }
#endif

}  // namespace

std::string version_text() {
  return concat("greyhound ", GREYHOUND_VERSION, "\n  CPU       ", cpu_line(), "\n  CUDA      ", cuda_line(),
                "\n  cuBLASLt  ", cublaslt_line(), "\n  NCCL      ", nccl_line(), "\n  MPI       ", mpi_line());
}

}  // namespace greyhound
