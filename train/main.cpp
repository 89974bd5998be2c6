#include <greyhound/core/comm/launch.h>
#include <greyhound/core/error.h>
#include <greyhound/train/cli.h>
#include <greyhound/train/console.h>

#include <exception>

namespace {

int fail(const char* message, int exit_code) {
  greyhound::print_error(message);
  greyhound::abort_ranks(exit_code);  // the other ranks of the run would wait for this one
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    greyhound::run_cli(argc, argv);
    return 0;
  } catch (const greyhound::Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
