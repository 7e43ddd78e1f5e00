// Lets libFuzzer run the target whose name the program has.
//
//   frames FOLDER...           mutates the files of the folders; new ones go to the first
//   frames FILE                runs one input, such as one that was found
//   frames --seeds=FOLDER      writes the inputs to begin with
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz.h"

namespace {

tfdist::fuzz::Target target;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string name = std::filesystem::path((*argv)[0]).filename();
  const auto& targets = tfdist::fuzz::Targets();
  const auto found = targets.find(name);
  if (found == targets.end()) {
    std::fprintf(stderr, "expected the name of a target, received '%s'\n", name.c_str());
    std::exit(2);
  }
  target = found->second;
  const std::string option = "--seeds=";
  if (*argc == 2 && std::string((*argv)[1]).rfind(option, 0) == 0) {
    const std::filesystem::path folder = (*argv)[1] + option.size();
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : target.seeds()) {
      std::ofstream(folder / ("seed" + std::to_string(number++)), std::ios::binary) << seed;
    }
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  target.run(tfdist::fuzz::Input(data, size));
  return 0;
}
