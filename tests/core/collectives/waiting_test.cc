// Communicator::Waiting names the missing ranks, and calls of it do not disturb the collectives.
#include <atomic>

#include "collectives/calls.h"

namespace tfdist::testing::waiting_test {
namespace {

TEST_CASE("names missing rank") {
  Ranks comms = Connected(2);
  CHECK(comms[0]->Waiting(0) == "");
  std::vector<float> ours(10, 1), theirs(10, 2);
  Ending first = AllReduce(*comms[0], ours, {7, "loss"});
  CHECK(comms[0]->Waiting(60) == "");
  std::string text;
  CHECK(Eventually([&] { return !(text = comms[0]->Waiting(0.02)).empty(); }));
  CHECK_CONTAINS(text, "rank 0 of 2: all_reduce 'loss'");
  CHECK_CONTAINS(text, "has waited 0 s for rank 1 (127.0.0.1:");
  CHECK_CONTAINS(text, "), which has not started it");
  Ending second = AllReduce(*comms[1], theirs, {7, "loss"});
  CHECK_OK(Wait(first));
  CHECK_OK(Wait(second));
  CHECK(comms[0]->Waiting(0) == "");
}

// Waiting holds the engine for a moment, in which other threads queue commands.
TEST_CASE("frequent calls") {
  Ranks comms = Connected(2);
  std::atomic<bool> stop{false};
  std::thread caller([&] {
    while (!stop) {
      for (const auto& comm : comms) CHECK(comm->Waiting(60) == "");
    }
  });
  const int steps = Rounds(20000);
  OnRanks(2, [&](int rank) {
    for (int step = 0; step < steps; ++step) {
      std::vector<float> values(10, static_cast<float>(step));
      const TimePoint begun = Clock::now();
      // Its first check, after a tenth of the timeout, would execute the command, too.
      Ending ending = AllReduce(*comms[rank], values, {1, "t", "", 60});
      CHECK_OK(Wait(ending));
      // A command that is not executed then waits for the communicator's own thread, up to 5 s.
      CHECK(SecondsSince(begun) < 3);
      CHECK(values[9] == 2.0f * static_cast<float>(step));
    }
  });
  stop = true;
  caller.join();
}

}  // namespace
}  // namespace tfdist::testing::waiting_test
