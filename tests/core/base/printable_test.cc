// Messages with texts of other processes.
#include "core/base/printable.h"

#include <string>

#include "core/base/c_error.h"
#include "testing.h"

namespace tfdist::testing::printable_test {
namespace {

TEST_CASE("texts are unchanged") {
  const std::string text = "rank 2 of 4: Z\u00e4hler \u6570 \U0001f600\n'dense/kernel' \\x1b";
  CHECK(Printable(text) == text);
  CHECK(Printable("").empty());
}

TEST_CASE("control characters are escaped") {
  CHECK(Printable("\x1b]0;owned\x07\r\t\x7f") == "\\x1b]0;owned\\x07\\x0d\\x09\\x7f");
  CHECK(Printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(Printable("\u0085\u009b31m") == "\\x85\\x9b31m");
  CHECK(Printable("\u202e\u2066\u2028\u2029\u200f\ufeff") ==
        "\\u202e\\u2066\\u2028\\u2029\\u200f\\ufeff");
}

TEST_CASE("bytes that are no utf8 are escaped") {
  CHECK(Printable("\x9b") == "\\x9b");
  CHECK(Printable("a\xff\xfe") == "a\\xff\\xfe");
  // Half a character, an overlong one, a surrogate, and one beyond Unicode.
  CHECK(Printable("\xe2\x80") == "\\xe2\\x80");
  CHECK(Printable("\xc0\x9b") == "\\xc0\\x9b");
  CHECK(Printable("\xe0\x82\x9b") == "\\xe0\\x82\\x9b");
  CHECK(Printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(Printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(Printable("\xc3(") == "\\xc3(");
}

// A name of a peer's in an error that reaches Python.
TEST_CASE("reported errors are escaped") {
  char error[64];
  const Status status(StatusCode::kInvalidArgument, "received '\x1b[2J' from rank 1");
  CHECK(Report(status, error, sizeof error) == static_cast<int>(status.code()));
  CHECK(std::string(error) == "received '\\x1b[2J' from rank 1");
}

}  // namespace
}  // namespace tfdist::testing::printable_test
