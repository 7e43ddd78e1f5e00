// tests [--long] [OPTION...]    runs test cases; doctest's options select them, see tests --help
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"
#include "rounds.h"

namespace {

int cases_run = 0;

// State that doctest does not pass to the tests themselves.
class Counter : public doctest::IReporter {
 public:
  explicit Counter(const doctest::ContextOptions&) {}

  void test_case_start(const doctest::TestCaseData&) override { ++cases_run; }
  void log_assert(const doctest::AssertData& data) override {
    if (data.m_failed) ++tfdist::testing::failed_checks;
  }
  void log_message(const doctest::MessageData& data) override {
    if (data.m_severity != doctest::assertType::is_warn) ++tfdist::testing::failed_checks;
  }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

DOCTEST_REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

int main(int argc, char** argv) {
  std::vector<const char*> arguments;
  for (int i = 0; i < argc; ++i) {
    if (std::strcmp(argv[i], "--long") == 0) {
      tfdist::testing::share = 1;
    } else {
      arguments.push_back(argv[i]);
    }
  }
  doctest::Context context;
  context.setOption("minimal", true);
  context.setOption("abort-after", 50);  // a failed check in a loop
  context.applyCommandLine(static_cast<int>(arguments.size()), arguments.data());
  const int result = context.run();
  if (context.shouldExit() || cases_run > 0) return result;
  std::fprintf(stderr, "%s: no test case matches\n", argv[0]);
  return 2;
}
