// A temporary file for a test.
#ifndef TFDIST_TESTS_CORE_SCRATCH_H_
#define TFDIST_TESTS_CORE_SCRATCH_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "testing.h"

namespace tfdist::testing {

// The path of an empty file, which the destructor removes.
struct Scratch {
  Scratch() {
    path = std::filesystem::temp_directory_path() / "tfdist_test_XXXXXX";
    REQUIRE(close(mkstemp(path.data())) == 0);
  }
  ~Scratch() { std::remove(path.c_str()); }
  std::string Read() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void Write(const std::string& content) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  std::string path;
};

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_SCRATCH_H_
