// What a collective tells its caller when a rank dies, gives up or leaves.
#include "collectives/calls.h"

namespace tfdist::testing::faults_test {
namespace {

void TestDeath(int size, int victim) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, victim, &values);
  const TimePoint start = Clock::now();
  comms[victim]->Close();  // says nothing to the others
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const Status status = Wait(endings[rank]);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "lost " + Rank(victim));
    EXPECT_CONTAINS(status.message(), StrCat("rank ", rank, " of ", size));
    // The first failure is the one that later collectives report.
    Ending later = AllReduce(*comms[rank], values[rank], {2, "later"});
    const Status refused = Wait(later);
    EXPECT_STATUS(refused, StatusCode::kUnavailable);
    EXPECT_CONTAINS(refused.message(), "all_reduce 'later'");
    EXPECT_CONTAINS(refused.message(), "lost " + Rank(victim));
  }
  EXPECT(SecondsSince(start) < 2);
}

void TestDeathWhileIdle(int size) {
  auto comms = Connected(size);
  comms[0]->Close();
  for (int rank = 1; rank < size; ++rank) {
    EXPECT(Eventually([&] { return !comms[rank]->status().ok(); }));
    std::vector<float> values(3);
    Ending ending = AllReduce(*comms[rank], values);
    const Status status = Wait(ending);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "lost " + Rank(0));
  }
}

void TestAbort(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, 1, &values);
  comms[1]->Abort(Status(StatusCode::kUnavailable, "the disk is full"));
  for (int rank = 0; rank < size; ++rank) {
    if (rank == 1) continue;
    const Status status = Wait(endings[rank]);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "ended by " + Rank(1));
    EXPECT_CONTAINS(status.message(), "the disk is full");
  }
  EXPECT(Eventually([&] { return !comms[1]->status().ok(); }));
  // Nothing that comes later covers the first failure.
  comms[0]->Abort(Status(StatusCode::kInternal, "something else"));
  std::vector<float> more(3);
  Ending ending = AllReduce(*comms[0], more);
  EXPECT_CONTAINS(Wait(ending).message(), "the disk is full");
  EXPECT_CONTAINS(comms[0]->status().message(), "the disk is full");
}

void TestCancel(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, 0, &values, {1, "dense/kernel"});
  comms[1]->Cancel({1, 0});
  const Status own = Wait(endings[1]);
  EXPECT_STATUS(own, StatusCode::kCancelled);
  EXPECT_CONTAINS(own.message(),
                  StrCat("rank 1 of ", size, ": cancelled all_reduce 'dense/kernel'"));
  for (int rank = 2; rank < size; ++rank) {
    const Status status = Wait(endings[rank]);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "ended by " + Rank(1));
    EXPECT_CONTAINS(status.message(), "cancelled all_reduce 'dense/kernel'");
  }
  std::vector<float> more(3);
  Ending ending = AllReduce(*comms[0], more, {2});
  EXPECT_STATUS(Wait(ending), StatusCode::kUnavailable);
}

// A step may be stopped while its collective is on the way to the communicator's thread.
void TestCancelBeforeStart() {
  auto comms = Connected(2);
  std::vector<float> mine(10), theirs(10);
  Ending other = AllReduce(*comms[1], theirs);
  comms[0]->Cancel({1, 0});
  Ending ending = AllReduce(*comms[0], mine);
  EXPECT_STATUS(Wait(ending), StatusCode::kCancelled);
  const Status status = Wait(other);
  EXPECT_STATUS(status, StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), Rank(0));
}

void TestCancelAfterEnd() {
  auto comms = Connected(2);
  for (int step = 0; step < 2; ++step) {
    std::vector<float> mine(10, 1), theirs(10, 2);
    Ending first = AllReduce(*comms[0], mine), second = AllReduce(*comms[1], theirs);
    EXPECT_OK(Wait(first));
    EXPECT_OK(Wait(second));
    EXPECT(mine[9] == 3 && theirs[9] == 3);
    comms[0]->Cancel({1, static_cast<uint64_t>(step)});
  }
  EXPECT_OK(comms[0]->status());
}

void TestLeave(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values(size, std::vector<float>(50000, 1));
  // What the leaving rank has taken part in is not disturbed, even if others come to it late.
  std::vector<float> sent(10 * size, 5), received(10);
  Ending root = Scatter(*comms[1], sent, 1, {3, "early"});
  if (size == 2) EXPECT_OK(Wait(root));
  comms[1]->Leave();
  if (size == 2) {
    Ending late = Scatter(*comms[0], received, 1, {3, "early"});
    EXPECT_OK(Wait(late));
    EXPECT(received == std::vector<float>(10, 5));
  }
  auto endings = ReduceWithout(comms, 1, &values, {1, "last"});
  for (int rank = 0; rank < size; ++rank) {
    if (rank == 1) continue;
    const Status status = Wait(endings[rank]);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "all_reduce 'last' needs " + Rank(1));
    EXPECT_CONTAINS(status.message(), "which has finished its program");
  }
}

void TestLeaveUnderWay(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, 1, &values, {1, "pending"});
  comms[1]->Leave();
  for (int rank = 0; rank < size; ++rank) {
    if (rank == 1) continue;
    const Status status = Wait(endings[rank]);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "all_reduce 'pending' needs " + Rank(1));
  }
}

// Leaving and closing after a collective does not take it from those who are still in it.
void TestLeaveAndClose(int size) {
  for (int step = 0; step < 20; ++step) {
    auto comms = Connected(size);
    OnRanks(size, [&](int rank) {
      std::vector<float> values(30, rank + 1);
      Ending ending = AllReduce(*comms[rank], values);
      EXPECT_OK(Wait(ending));
      EXPECT(values[29] == size * (size + 1) / 2);
      std::vector<float> large(100000, rank);
      Ending broadcast = Broadcast(*comms[rank], large, 1, {2});
      EXPECT_OK(Wait(broadcast));
      EXPECT(large[99999] == 1);
      comms[rank]->Leave();
      comms[rank]->Close();
    });
  }
}

// A rank that leaves in the middle of a collective has not finished it.
void TestLeaveInTheMiddle() {
  for (const bool owes_data : {true, false}) {
    auto comms = Connected(3);
    std::vector<std::vector<float>> values(3, std::vector<float>(200000, 1));
    // With rank 2 absent nobody can finish; rank 1 has opened and will not go on.
    Ending pending = AllReduce(*comms[0], values[0], {1, "half", "", 0});
    Ending given_up = AllReduce(*comms[1], values[1], {1, "half", "", 0});
    EXPECT(StillRuns(pending, 0.05));
    comms[1]->Leave();
    if (owes_data) {
      comms[1]->Close();
      EXPECT_STATUS(Wait(given_up), StatusCode::kUnavailable);
      Ending last = AllReduce(*comms[2], values[2], {1, "half", "", 0});
      for (Ending* ending : {&pending, &last}) {
        const Status status = Wait(*ending, 5);
        EXPECT_STATUS(status, StatusCode::kUnavailable);
        EXPECT_CONTAINS(status.message(), Rank(1));
      }
    } else {
      Ending last = AllReduce(*comms[2], values[2], {1, "half", "", 0});
      EXPECT_OK(Wait(pending));
      EXPECT_OK(Wait(given_up));
      EXPECT_OK(Wait(last));
      EXPECT(values[0][199999] == 3);
    }
  }
}

void TestClose() {
  auto comms = Connected(2);
  std::vector<float> values(10);
  Ending ending = AllReduce(*comms[0], values);
  comms[0]->Close();
  const Status status = Wait(ending);
  EXPECT_STATUS(status, StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), "rank 0 of 2: the communicator was closed here");
  Ending later = AllReduce(*comms[0], values, {2, "later"});
  EXPECT_CONTAINS(Wait(later).message(), "the communicator was closed here");
  comms[0]->Close();
}

void Main() {
  for (const int size : {2, 3, 4}) {
    for (int victim = 0; victim < size; ++victim) TestDeath(size, victim);
    TestDeathWhileIdle(size);
    TestAbort(size);
    TestCancel(size);
    TestLeave(size);
    TestLeaveUnderWay(size);
    TestLeaveAndClose(size);
  }
  TestCancelBeforeStart();
  TestCancelAfterEnd();
  TestLeaveInTheMiddle();
  TestClose();
  std::printf("faults (%s): ok\n", shared_memory ? "shared memory" : "sockets");
}

REGISTER_TEST([] { InBothWays(Main); });

}  // namespace
}  // namespace tfdist::testing::faults_test
