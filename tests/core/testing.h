// Communicators for tests whose ranks are threads.
#ifndef TFDIST_TESTS_CORE_TESTING_H_
#define TFDIST_TESTS_CORE_TESTING_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "core/collectives/communicator.h"
#include "rounds.h"

namespace tfdist::testing {

inline Key TestKey() {
  Key key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<uint8_t>(17 * i + 3);
  return key;
}

// Whether the ranks of a test use shared memory; else only sockets.
inline bool shared_memory = true;

#ifndef TFDIST_FUZZING
// Runs the body of a test with shared memory and with sockets only.
inline void InBothWays(const std::function<void()>& body) {
  struct Restore {
    ~Restore() { shared_memory = true; }
  } restore;
  for (const bool shared : {true, false}) {
    INFO(std::string(shared ? "with shared memory" : "with sockets only"));
    shared_memory = shared;
    body();
  }
}

#define TEST_CASE_IN_BOTH_WAYS(name) TFDIST_BOTH_WAYS(DOCTEST_ANONYMOUS(BothWays), name)
#define TFDIST_BOTH_WAYS(function, name)                       \
  static void function();                                      \
  TEST_CASE(name) { ::tfdist::testing::InBothWays(function); } \
  static void function()
#endif

// `size` connected communicators in this process, on `hosts` hosts: rank r is on host r % hosts.
inline std::vector<std::unique_ptr<Communicator>> ConnectedOn(int size, int hosts) {
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    REQUIRE_OK(Communicator::Create(rank, size, "", 0, &ranks[rank], shared_memory));
    addresses.push_back(StrCat("127.0.0.", 1 + rank % hosts, ":", ranks[rank]->port()));
  }
  OnRanks(size, [&](int rank) { REQUIRE_OK(ranks[rank]->Connect(TestKey(), 1, addresses, 20)); });
  return ranks;
}

inline std::vector<std::unique_ptr<Communicator>> Connected(int size) {
  return ConnectedOn(size, 1);
}

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_TESTING_H_
