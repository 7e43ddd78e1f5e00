// tests [--long] NAME...    runs the tests; without a name, prints the names of all tests
#include <cstdio>
#include <cstring>

#include "testing.h"

int main(int argc, char** argv) {
  const auto& tests = tfdist::testing::Tests();
  if (argc == 1) {
    for (const auto& [name, run] : tests) std::puts(name.c_str());
  }
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--long") == 0) {
      tfdist::testing::share = 1;
      continue;
    }
    const auto test = tests.find(argv[i]);
    if (test == tests.end()) {
      std::fprintf(stderr, "%s: no test '%s'\n", argv[0], argv[i]);
      return 2;
    }
    test->second();
  }
}
