// Where what can be made again, but takes time, is kept from run to run.
#pragma once

#include <string>

namespace greyhound {

// $GREYHOUND_CACHE, or greyhound in $XDG_CACHE_HOME or ~/.cache. Throws a runtime Error when none of them is set.
std::string cache_folder();

// The same, made where it is missing. Throws a runtime Error that names it when it cannot be.
std::string make_cache_folder();

// One process at a time holds the lock that is a file of the folder; the others wait. It ends with the process. Throws
// a runtime Error when the file cannot be written.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path);
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;
  ~CacheLock();

 private:
  int descriptor_;
};

}  // namespace greyhound
