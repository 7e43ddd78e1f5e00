// Messages with texts of other processes.
#include "core/base/printable.h"

#include <cstdio>
#include <string>

#include "core/base/c_error.h"
#include "testing.h"

namespace tfdist::testing::printable_test {
namespace {

void TestTextsAreUnchanged() {
  const std::string text = "rank 2 of 4: Z\u00e4hler \u6570 \U0001f600\n'dense/kernel' \\x1b";
  EXPECT(Printable(text) == text);
  EXPECT(Printable("").empty());
}

void TestControlCharactersAreEscaped() {
  EXPECT(Printable("\x1b]0;owned\x07\r\t\x7f") == "\\x1b]0;owned\\x07\\x0d\\x09\\x7f");
  EXPECT(Printable(std::string("a\0b", 3)) == "a\\x00b");
  EXPECT(Printable("\u0085\u009b31m") == "\\x85\\x9b31m");
  EXPECT(Printable("\u202e\u2066\u2028\u2029\u200f\ufeff") ==
         "\\u202e\\u2066\\u2028\\u2029\\u200f\\ufeff");
}

void TestBytesThatAreNoUtf8AreEscaped() {
  EXPECT(Printable("\x9b") == "\\x9b");
  EXPECT(Printable("a\xff\xfe") == "a\\xff\\xfe");
  // Half a character, one that is too long, a surrogate, and one beyond Unicode.
  EXPECT(Printable("\xe2\x80") == "\\xe2\\x80");
  EXPECT(Printable("\xc0\x9b") == "\\xc0\\x9b");
  EXPECT(Printable("\xe0\x82\x9b") == "\\xe0\\x82\\x9b");
  EXPECT(Printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  EXPECT(Printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  EXPECT(Printable("\xc3(") == "\\xc3(");
}

// A name of a peer's in an error that reaches Python.
void TestReportedErrorsAreEscaped() {
  char error[64];
  const Status status(StatusCode::kInvalidArgument, "received '\x1b[2J' from rank 1");
  EXPECT(Report(status, error, sizeof error) == static_cast<int>(status.code()));
  EXPECT(std::string(error) == "received '\\x1b[2J' from rank 1");
}

void Main() {
  TestTextsAreUnchanged();
  TestControlCharactersAreEscaped();
  TestBytesThatAreNoUtf8AreEscaped();
  TestReportedErrorsAreEscaped();
  std::puts("printable: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::printable_test
