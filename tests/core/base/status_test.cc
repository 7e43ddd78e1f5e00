// StrCat, beside the output of a stream.
#include "core/base/status.h"

#include <cstdint>
#include <cstdio>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "testing.h"

namespace tfdist::testing::status_test {
namespace {

template <typename... Args>
std::string Streamed(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

template <typename... Args>
void ExpectStreamed(const Args&... args) {
  const std::string expected = Streamed(args...), text = StrCat(args...);
  if (text != expected) std::fprintf(stderr, "expected %s\n", expected.c_str());
  CHECK(text == expected);
}

TEST_CASE("prints as a stream") {
  const char array[] = "array";
  const std::string text("with\0zero", 9);
  ExpectStreamed("literal ", text, std::string_view("view"), array,
                 static_cast<const char*>(array));
  ExpectStreamed('c', uint8_t{'d'}, int8_t{'e'}, true, false);
  ExpectStreamed(int16_t{-1}, uint16_t{65535}, -7, 7u, std::numeric_limits<int64_t>::min(), " ",
                 std::numeric_limits<uint64_t>::max());
  ExpectStreamed(0.5, " ", 1e-9, " ", 1234567.0, " ", 2.5f);
  CHECK(StrCat().empty());
}

}  // namespace
}  // namespace tfdist::testing::status_test
