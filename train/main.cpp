#include <greyhound/core/comm/launch.h>
#include <greyhound/core/error.h>
#include <greyhound/train/agreement.h>
#include <greyhound/train/cli.h>
#include <greyhound/train/console.h>
#include <greyhound/train/waiting_threads.h>

#include <csignal>
#include <exception>
#include <new>
#include <stdexcept>

namespace {

int fail(const char* message, int exit_code) {
  greyhound::print_error(message);
  greyhound::abort_ranks(exit_code);  // the other ranks of the run would wait for this one
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, as on a full disk
  greyhound::let_waiting_threads_sleep(argv);
  try {
    greyhound::run_cli(argc, argv);
    return 0;
  } catch (const greyhound::AgreedError& error) {
    greyhound::print_common_error(error.what());  // every rank ends with it
    return error.exit_code();
  } catch (const greyhound::Error& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return fail("out of memory on the host", 1);
  } catch (const std::length_error&) {  // a vector larger than any memory
    return fail("out of memory on the host", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
