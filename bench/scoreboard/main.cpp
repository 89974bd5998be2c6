// greyhound-scoreboard: answers requests of the scoreboard (bench/scoreboard/score.py) with Greyhound's losses. Reads a
// JSON array from standard input; writes "BEGIN i" before request i and "ANSWER {...}" after it.
#include "calls.h"

#include <greyhound/core/error.h>
#include <greyhound/core/stream.h>
#include <greyhound/core/version.h>

#include <exception>
#include <iostream>
#include <iterator>
#include <string>

using namespace greyhound;
using scoreboard::Json;

int main(int argc, char** argv) {
  const std::string device = argc == 3 && std::string(argv[1]) == "--device" ? argv[2] : "";
  if (device != "cpu" && device != "cuda") {
    std::cerr << "usage: greyhound-scoreboard --device cpu|cuda < requests.json\n";
    return 2;
  }
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    const Json requests = Json::parse(text);
    // The default stream cannot be captured.
    const Stream stream(device == "cuda" ? Context::cuda() : Context::cpu());
    const Context& context = stream.context();
    std::cout << "VERSION " << GREYHOUND_VERSION << std::endl;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      std::cout << "BEGIN " << requests[i].at("number") << std::endl;
      Json result;
      try {
        result = scoreboard::answer(context, requests[i]);
      } catch (const Error& error) {
        result = {{"status", "error"}, {"message", error.what()}};
      }
      std::cout << "ANSWER " << result.dump() << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "greyhound-scoreboard: error: " << error.what() << '\n';
    return 1;
  }
}
