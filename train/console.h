// What a run says to people: lines on stdout, warnings on stderr.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace greyhound {

// spdlog::info() prints bare lines on stdout, spdlog::warn() "greyhound: warning: ..." on stderr; each at once, so that
// pipes and files show progress. Ranks other than 0 say nothing but errors.
void set_up_console(int rank = 0, int ranks = 1);

// Throws a runtime Error when what was printed on stdout did not reach it: a full disk, a closed pipe.
void require_output_written();

// One line on stderr: "greyhound: error: ...", with the rank where there are several.
void print_error(const std::string& message);

// The same, from rank 0 alone: of what every rank knows.
void print_common_error(const std::string& message);

}  // namespace greyhound
