#include <greyhound/core/error.h>

#include <doctest/doctest.h>

#include <string>

using namespace greyhound;

TEST_CASE("errors: kinds, exit codes, messages") {
  try {
    throw_usage("row ", 3, ": expected ", 1.5, ", got ", std::string("x"));
    FAIL("did not throw");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(error.exit_code() == 2);
    CHECK(std::string(error.what()) == "row 3: expected 1.5, got x");
  }
  try {
    throw_runtime("disk full");
    FAIL("did not throw");
  } catch (const std::runtime_error& error) {  // also for whoever does not know our type
    const auto* ours = dynamic_cast<const Error*>(&error);
    REQUIRE(ours != nullptr);
    CHECK(ours->kind() == ErrorKind::runtime);
    CHECK(ours->exit_code() == 1);
    CHECK(std::string(ours->what()) == "disk full");
  }
}

TEST_CASE("require: throws a usage error only when the condition fails") {
  CHECK_NOTHROW(require(true, "not this"));
  CHECK_THROWS_WITH_AS(require(1 > 2, "batch ", 1, " > ", 2), "batch 1 > 2", Error);
}
