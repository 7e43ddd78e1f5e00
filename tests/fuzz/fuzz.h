// Fuzz targets: functions that take any bytes, and fail by a CHECK or a sanitizer's report.
//
// Each file of targets/ registers one, by its name. libfuzzer_main.cc lets libFuzzer choose the
// bytes, for coverage; tests/core/fuzz_corpus_test.cc replays the kept ones, with any compiler.
#ifndef TFDIST_TESTS_FUZZ_FUZZ_H_
#define TFDIST_TESTS_FUZZ_FUZZ_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tfdist::fuzz {

// Cuts the bytes of an input into values. Where it has ended, all values are zeros. (clang has a
// FuzzedDataProvider for this, but other compilers, which replay the corpus, do not.)
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const size_t bytes = std::min(sizeof(T), left_.size());
    if (bytes > 0) std::memcpy(&value, left_.data(), bytes);
    left_.remove_prefix(bytes);
    return value;
  }
  // From 0 to limit - 1; limits are small.
  uint32_t Below(uint32_t limit) {
    return limit <= 256 ? Take<uint8_t>() % limit : Take<uint16_t>() % limit;
  }
  bool Bit() { return Take<uint8_t>() % 2 == 1; }
  // Mostly a small number; else a power of two and a little more, or any.
  uint64_t Number() {
    const auto byte = Take<uint8_t>();
    if (byte < 208) return byte;
    if (byte < 240) return (uint64_t{1} << (2 * (byte - 208))) + Below(16);
    return Take<uint64_t>();
  }
  double Real() {
    static constexpr double kOdd[] = {0,
                                      1,
                                      -1,
                                      0.5,
                                      1e-9,
                                      1e30,
                                      1e308,
                                      std::numeric_limits<double>::infinity(),
                                      std::numeric_limits<double>::quiet_NaN()};
    const auto byte = Take<uint8_t>();
    return byte < std::size(kOdd) ? kOdd[byte] : byte < 250 ? byte / 100.0 : Take<double>();
  }
  std::string Bytes(size_t count) {
    std::string bytes(left_.substr(0, count));
    left_.remove_prefix(bytes.size());
    return bytes;
  }
  // At most `limit` bytes.
  std::string Text(uint32_t limit) { return Bytes(Below(limit + 1)); }
  std::string Rest() { return Bytes(left_.size()); }

 private:
  std::string_view left_;
};

struct Target {
  void (*run)(Input input) = nullptr;
  // Inputs to begin with, made by the project's own encoders.
  std::vector<std::string> (*seeds)() = nullptr;
};

// By name.
inline std::map<std::string, Target>& Targets() {
  static std::map<std::string, Target> targets;
  return targets;
}

// "../tests/fuzz/targets/row_log.cc" -> "row_log".
inline std::string TargetName(const std::string& path) {
  const size_t begin = path.rfind('/') + 1;
  return path.substr(begin, path.rfind('.') - begin);
}

// Registers the target of this file. Files are compiled together, so each has its own namespace.
#define FUZZ_TARGET(run, seeds)                                                              \
  [[maybe_unused]] const bool registered =                                                   \
      ::tfdist::fuzz::Targets()                                                              \
          .emplace(::tfdist::fuzz::TargetName(__FILE__), ::tfdist::fuzz::Target{run, seeds}) \
          .second

// For targets that make requests of any bytes: some to begin with.
inline std::vector<std::string> AnyBytes() {
  std::vector<std::string> seeds;
  uint32_t state = 1;
  for (size_t size = 64; size <= 1024; size *= 2) {
    seeds.emplace_back(size, '\0');
    for (char& byte : seeds.back()) {
      state = state * 1664525 + 1013904223;
      byte = static_cast<char>(state >> 24);
    }
  }
  return seeds;
}

}  // namespace tfdist::fuzz

#endif  // TFDIST_TESTS_FUZZ_FUZZ_H_
