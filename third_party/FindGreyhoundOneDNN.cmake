# Finds oneDNN by header and library alone: distributions' CMake packages of it ask for OpenCL's development files, which
# nothing here uses. Defines the imported target GreyhoundOneDNN::dnnl. DNNL_ROOT points to other places. Used by the
# build and, installed beside the package configuration, by projects that link a static Greyhound.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${DNNL_ROOT} $ENV{DNNLROOT} PATH_SUFFIXES include)
find_library(ONEDNN_LIBRARY dnnl HINTS ${DNNL_ROOT} $ENV{DNNLROOT} PATH_SUFFIXES lib lib64)
mark_as_advanced(ONEDNN_INCLUDE_DIR ONEDNN_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(GreyhoundOneDNN REQUIRED_VARS ONEDNN_LIBRARY ONEDNN_INCLUDE_DIR)

if(GreyhoundOneDNN_FOUND AND NOT TARGET GreyhoundOneDNN::dnnl)
  add_library(GreyhoundOneDNN::dnnl UNKNOWN IMPORTED GLOBAL)
  set_target_properties(GreyhoundOneDNN::dnnl PROPERTIES
    IMPORTED_LOCATION ${ONEDNN_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${ONEDNN_INCLUDE_DIR})
endif()
