// A small test harness for tests whose ranks are threads.
#ifndef TFDIST_TESTS_CORE_TESTING_H_
#define TFDIST_TESTS_CORE_TESTING_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/collectives/communicator.h"

namespace tfdist::testing {

#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

#define EXPECT_OK(expression)                                                             \
  do {                                                                                    \
    const ::tfdist::Status status_ = (expression);                                        \
    if (!status_.ok()) {                                                                  \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, status_.message().c_str()); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

#define EXPECT_CONTAINS(text, part)                                              \
  do {                                                                           \
    const std::string text_ = (text);                                            \
    if (text_.find(part) == std::string::npos) {                                 \
      std::fprintf(stderr, "%s:%d: expected '%s' in '%s'\n", __FILE__, __LINE__, \
                   std::string(part).c_str(), text_.c_str());                    \
      std::abort();                                                              \
    }                                                                            \
  } while (false)

// Long tests run one of `share` rounds. The plain tests run all rounds. Under a sanitizer, which is
// ten times slower, tests run a part of them, or all with --long.
#ifndef TFDIST_TEST_SHARE
#define TFDIST_TEST_SHARE 1
#endif
inline int share = TFDIST_TEST_SHARE;
inline int Rounds(int all) { return (all + share - 1) / share; }

// The tests of the binary by name, for main.cc.
inline std::map<std::string, std::function<void()>>& Tests() {
  static std::map<std::string, std::function<void()>> tests;
  return tests;
}

// "../tests/core/ps/client/errors_test.cc" -> "ps_client_errors".
inline std::string TestName(std::string path) {
  const std::string folder = "tests/core/", suffix = "_test.cc";
  const size_t begin = path.rfind(folder) + folder.size();
  path = path.substr(begin, path.size() - begin - suffix.size());
  std::replace(path.begin(), path.end(), '/', '_');
  return path;
}

// Registers `run` as the test of this file. Files are compiled together, so each has its own
// namespace.
#define REGISTER_TEST(run)                 \
  [[maybe_unused]] const bool registered = \
      ::tfdist::testing::Tests().emplace(::tfdist::testing::TestName(__FILE__), run).second

inline Key TestKey() {
  Key key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(17 * i + 3);
  return key;
}

// Whether the ranks of a test use shared memory; else only sockets.
inline bool shared_memory = true;

// Runs the body of a test with shared memory and with sockets only.
inline void InBothWays(const std::function<void()>& body) {
  for (const bool shared : {true, false}) {
    shared_memory = shared;
    body();
  }
  shared_memory = true;
}

// `size` connected communicators in this process, on `hosts` hosts: rank r is on host r % hosts.
inline std::vector<std::unique_ptr<Communicator>> ConnectedOn(int size, int hosts) {
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_OK(Communicator::Create(rank, size, "", 0, &ranks[rank], shared_memory));
    addresses.push_back(StrCat("127.0.0.", 1 + rank % hosts, ":", ranks[rank]->port()));
  }
  std::vector<std::thread> threads;
  for (auto& communicator : ranks) {
    threads.emplace_back([&] { EXPECT_OK(communicator->Connect(TestKey(), 1, addresses, 20)); });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

inline std::vector<std::unique_ptr<Communicator>> Connected(int size) {
  return ConnectedOn(size, 1);
}

// Runs `body(rank)` on a thread for each rank, and waits for all threads.
inline void OnRanks(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_TESTING_H_
