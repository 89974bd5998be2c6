// Which files a run reads, so that another run can be told from it.
#pragma once

#include <greyhound/train/config.h>

#include <cstdint>
#include <string>
#include <vector>

namespace greyhound {

struct DataFile {
  std::string path;
  std::int64_t bytes = 0;
  std::string hash;  // of its first and last 64 KiB: shards may be too large to read for it

  bool operator==(const DataFile&) const = default;
};

// The files of data.train, then those of data.val, in the order in which they are read; none of synthetic data.
std::vector<DataFile> data_files(const Config& config);

}  // namespace greyhound
