// Checks of tests: doctest's, and checks of a status. A test case continues after a failed CHECK,
// and ends at a failed REQUIRE.
#ifndef TFDIST_TESTS_CORE_CHECK_H_
#define TFDIST_TESTS_CORE_CHECK_H_

#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"

#ifdef TFDIST_FUZZING
// libFuzzer keeps an input with which the process ends.
#include <cstdio>
#include <cstdlib>

#define REQUIRE(...)                                                        \
  do {                                                                      \
    if (!(__VA_ARGS__)) FAIL_CHECK("expected ", std::string(#__VA_ARGS__)); \
  } while (false)
#define CHECK(...) REQUIRE(__VA_ARGS__)
#define FAIL_CHECK(what, text)                                                       \
  do {                                                                               \
    std::fprintf(stderr, "%s:%d: %s%s\n", __FILE__, __LINE__, what, (text).c_str()); \
    std::abort();                                                                    \
  } while (false)
#define FAIL(what, text) FAIL_CHECK(what, text)
#else
// Checks are calls: they compile faster, and a REQUIRE inside a CHECK ends the test case.
#define DOCTEST_CONFIG_SUPER_FAST_ASSERTS
#define DOCTEST_CONFIG_USE_STD_HEADERS
#include "doctest/doctest.h"
#endif

#define CHECK_OK(expression) TFDIST_OK(FAIL_CHECK, expression)
#define REQUIRE_OK(expression) TFDIST_OK(FAIL, expression)
#define TFDIST_OK(fail, expression)                               \
  do {                                                            \
    const ::tfdist::Status status_ = (expression);                \
    if (!status_.ok()) fail(#expression ": ", status_.message()); \
  } while (false)

#define CHECK_STATUS(status, expected) TFDIST_STATUS(FAIL_CHECK, status, expected)
#define REQUIRE_STATUS(status, expected) TFDIST_STATUS(FAIL, status, expected)
#define TFDIST_STATUS(fail, status, expected)                                                \
  do {                                                                                       \
    const ::tfdist::Status found_ = (status);                                                \
    if (found_.code() != (expected)) {                                                       \
      fail("", ::tfdist::StrCat("expected code ", static_cast<int>(expected), ", received ", \
                                static_cast<int>(found_.code()), ": ", found_.message()));   \
    }                                                                                        \
  } while (false)

#define CHECK_CONTAINS(text, part) TFDIST_CONTAINS(FAIL_CHECK, text, part)
#define REQUIRE_CONTAINS(text, part) TFDIST_CONTAINS(FAIL, text, part)
#define TFDIST_CONTAINS(fail, text, part)                                                \
  do {                                                                                   \
    const std::string text_ = (text);                                                    \
    if (text_.find(part) == std::string::npos) {                                         \
      fail("", ::tfdist::StrCat("expected '", std::string(part), "' in '", text_, "'")); \
    }                                                                                    \
  } while (false)

// One check of many elements, which names the first that is wrong: a check of each is a hundred
// times slower, and under a sanitizer it takes minutes.
#define CHECK_EACH(i, count, ...)                                                                  \
  do {                                                                                             \
    const size_t count_ = (count);                                                                 \
    for (size_t i = 0; i < count_; ++i) {                                                          \
      if (__VA_ARGS__) continue;                                                                   \
      FAIL_CHECK("",                                                                               \
                 ::tfdist::StrCat("at " #i " = ", i, " of ", count_, ": expected " #__VA_ARGS__)); \
      break;                                                                                       \
    }                                                                                              \
  } while (false)
#define CHECK_ALL(values, expected)                                                     \
  do {                                                                                  \
    size_t at_ = 0;                                                                     \
    for (const auto& value_ : (values)) {                                               \
      if (!(value_ == (expected))) {                                                    \
        FAIL_CHECK("", ::tfdist::StrCat("element ", at_, " of " #values " is ", value_, \
                                        ", expected ", (expected)));                    \
        break;                                                                          \
      }                                                                                 \
      ++at_;                                                                            \
    }                                                                                   \
  } while (false)

namespace tfdist::testing {

// Counted by main.cc.
inline std::atomic<int> failed_checks{0};

// The rest of a child process: ends it with 0, or with 1 if a check fails, of which the parent
// would not know.
[[noreturn]] inline void EndAfter(const std::function<void()>& body) {
  const int before = failed_checks;
  bool ends_early = false;
  try {
    body();
  } catch (...) {
    ends_early = true;
  }
  std::cout.flush();  // doctest's report
  _exit(ends_early || failed_checks > before ? 1 : 0);
}

// Runs `body(rank)` on a thread for each rank, and waits for all threads. A failed REQUIRE ends
// its own rank, and the test case once all ranks have ended.
inline void OnRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_CHECK_H_
