// Threads that start collectives on one communicator while others have the engine: none of them
// waits for the engine's own thread, which looks by itself after 5 s.
#include <thread>

#include "collectives/calls.h"

namespace tfdist::testing::wakeups_test {
namespace {

// The engine's thread sleeps for 5 s. The first check of a collective, after a tenth of its
// timeout, would wake it earlier.
constexpr double kStall = 3, kTimeout = 60;

void TestManyThreads(int size, const std::vector<size_t>& counts, int steps) {
  Ranks comms = Connected(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    for (uint64_t key = 0; key < counts.size(); ++key) {
      threads.emplace_back([&, rank, key] {
        for (int step = 0; step < steps; ++step) {
          std::vector<float> values(counts[key], static_cast<float>(rank + step));
          const TimePoint begun = Clock::now();
          Ending ending = AllReduce(*comms[rank], values, {key, "t", "", kTimeout});
          CHECK_OK(Wait(ending));
          CHECK(SecondsSince(begun) < kStall);
          const int sum = size * step + size * (size - 1) / 2;
          CHECK((values.front() == static_cast<float>(sum) && values.back() == values.front()));
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE_IN_BOTH_WAYS("many threads") {
  TestManyThreads(2, {1, 1, 1, 1, 1, 1}, Rounds(4000));
  TestManyThreads(2, {1, 3000, 20000, 60000}, Rounds(400));
  TestManyThreads(3, {1, 100, 20000}, Rounds(250));
}

}  // namespace
}  // namespace tfdist::testing::wakeups_test
