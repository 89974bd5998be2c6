// The command line.
#pragma once

namespace greyhound {

// Does what the arguments ask for. Throws an Error for a mistake in them or for whatever a command throws.
void run_cli(int argc, const char* const* argv);

}  // namespace greyhound
