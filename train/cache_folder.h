// Where what can be made again, but takes time, is kept from run to run.
#pragma once

#include <string>

namespace greyhound {

// $GREYHOUND_CACHE, or greyhound in $XDG_CACHE_HOME or ~/.cache. Throws a runtime Error when none of them is set.
std::string cache_folder();

// The same, made where it is missing. Throws a runtime Error that names it when it cannot be.
std::string make_cache_folder();

}  // namespace greyhound
