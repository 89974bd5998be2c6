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
  std::string hash;  // of all of it; of files above 16 MiB, of 64 KiB in each of 256 places spread evenly

  bool operator==(const DataFile&) const = default;
};

// The files of data.train, then those of data.val, in the order in which they are read; none of synthetic data.
std::vector<DataFile> data_files(const Config& config);

}  // namespace greyhound
