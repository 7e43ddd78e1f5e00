// The sentence that names the missing ranks; asking for it does not disturb the collectives.
#include <atomic>

#include "collectives/calls.h"

namespace tfdist::testing::waiting_test {
namespace {

void TestNamesWhoIsMissing() {
  Ranks comms = Connected(2);
  EXPECT(comms[0]->Waiting(0) == "");
  std::vector<float> ours(10, 1), theirs(10, 2);
  Ending first = AllReduce(*comms[0], ours, {7, "loss"});
  EXPECT(comms[0]->Waiting(60) == "");
  std::string text;
  EXPECT(Eventually([&] { return !(text = comms[0]->Waiting(0.02)).empty(); }));
  EXPECT_CONTAINS(text, "rank 0 of 2: all_reduce 'loss'");
  EXPECT_CONTAINS(text, "has waited 0 s for rank 1 (127.0.0.1:");
  EXPECT_CONTAINS(text, "), which has not started it");
  Ending second = AllReduce(*comms[1], theirs, {7, "loss"});
  EXPECT_OK(Wait(first));
  EXPECT_OK(Wait(second));
  EXPECT(comms[0]->Waiting(0) == "");
}

// One that asks has the engine for a moment, in which others leave it commands.
void TestAskedAllTheTime() {
  Ranks comms = Connected(2);
  std::atomic<bool> stop{false};
  std::thread asking([&] {
    while (!stop) {
      for (const auto& comm : comms) EXPECT(comm->Waiting(60) == "");
    }
  });
  const int steps = Rounds(20000);
  OnRanks(2, [&](int rank) {
    for (int step = 0; step < steps; ++step) {
      std::vector<float> values(10, static_cast<float>(step));
      const TimePoint begun = Clock::now();
      Ending ending = AllReduce(*comms[rank], values, {1});
      EXPECT_OK(Wait(ending));
      // A command that is left behind waits for the communicator's own thread, up to 5 s.
      EXPECT(SecondsSince(begun) < 3);
      EXPECT(values[9] == 2.0f * static_cast<float>(step));
    }
  });
  stop = true;
  asking.join();
}

void Main() {
  TestNamesWhoIsMissing();
  TestAskedAllTheTime();
  std::puts("waiting: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::waiting_test
