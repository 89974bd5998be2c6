// Git LFS leaves small text files in place of data that was not fetched.
#pragma once

#include <string_view>

namespace greyhound {

inline bool is_git_lfs_pointer(std::string_view contents) { return contents.starts_with("version https://git-lfs"); }

// What people are told of one, after what was expected.
inline constexpr const char* git_lfs_advice = "a Git LFS pointer: fetch the data with `git lfs pull`";

}  // namespace greyhound
