// What this program is and what it runs on.
#pragma once

#include <string>

namespace greyhound {

// Version, backends, and each library with the version it was built with and the one found at run time. Starts neither
// MPI nor NCCL.
std::string version_text();

}  // namespace greyhound
