// The kept inputs and the seeds of all fuzz targets. libFuzzer runs the same functions: see
// tests/fuzz/fuzz.h.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz.h"
#include "testing.h"

namespace tfdist::testing::fuzz_corpus_test {
namespace {

const std::filesystem::path kCorpus = "../tests/fuzz/corpus";

void Run(const fuzz::Target& target, const std::string& bytes) {
  target.run(fuzz::Input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

TEST_CASE("kept inputs") {
  int files = 0;
  for (const auto& [name, target] : fuzz::Targets()) {
    Run(target, "");
    for (const std::string& seed : target.seeds()) Run(target, seed);
    CHECK(std::filesystem::is_directory(kCorpus / name));
    for (const auto& entry : std::filesystem::directory_iterator(kCorpus / name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      Run(target, {std::istreambuf_iterator<char>(file), {}});
      ++files;
    }
  }
}

}  // namespace
}  // namespace tfdist::testing::fuzz_corpus_test
