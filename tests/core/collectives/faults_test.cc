// The status of collectives when a rank dies, aborts or leaves.
#include "collectives/calls.h"

namespace tfdist::testing::faults_test {
namespace {

void TestDeath(int size, int victim) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, victim, &values);
  const TimePoint start = Clock::now();
  comms[victim]->Close();  // without a frame to the others
  for (int rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    const Status status = Wait(endings[rank]);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "lost " + Rank(victim));
    CHECK_CONTAINS(status.message(), StrCat("rank ", rank, " of ", size));
    // Later collectives report the first failure.
    Ending later = AllReduce(*comms[rank], values[rank], {2, "later"});
    const Status refused = Wait(later);
    CHECK_STATUS(refused, StatusCode::kUnavailable);
    CHECK_CONTAINS(refused.message(), "all_reduce 'later'");
    CHECK_CONTAINS(refused.message(), "lost " + Rank(victim));
  }
  CHECK(SecondsSince(start) < 10);
}

void TestDeathWhileIdle(int size) {
  auto comms = Connected(size);
  comms[0]->Close();
  for (int rank = 1; rank < size; ++rank) {
    CHECK(Eventually([&] { return !comms[rank]->status().ok(); }));
    std::vector<float> values(3);
    Ending ending = AllReduce(*comms[rank], values);
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "lost " + Rank(0));
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
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "ended by " + Rank(1));
    CHECK_CONTAINS(status.message(), "the disk is full");
  }
  CHECK(Eventually([&] { return !comms[1]->status().ok(); }));
  // A later failure does not replace the first one.
  comms[0]->Abort(Status(StatusCode::kInternal, "something else"));
  std::vector<float> more(3);
  Ending ending = AllReduce(*comms[0], more);
  CHECK_CONTAINS(Wait(ending).message(), "the disk is full");
  CHECK_CONTAINS(comms[0]->status().message(), "the disk is full");
}

void TestCancel(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  auto endings = ReduceWithout(comms, 0, &values, {1, "dense/kernel"});
  comms[1]->Cancel({1, 0});
  const Status own = Wait(endings[1]);
  CHECK_STATUS(own, StatusCode::kCancelled);
  CHECK_CONTAINS(own.message(),
                 StrCat("rank 1 of ", size, ": cancelled all_reduce 'dense/kernel'"));
  for (int rank = 2; rank < size; ++rank) {
    const Status status = Wait(endings[rank]);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "ended by " + Rank(1));
    CHECK_CONTAINS(status.message(), "cancelled all_reduce 'dense/kernel'");
  }
  std::vector<float> more(3);
  Ending ending = AllReduce(*comms[0], more, {2});
  CHECK_STATUS(Wait(ending), StatusCode::kUnavailable);
}

// A step may be cancelled before its collective reaches the communicator's thread.
TEST_CASE_IN_BOTH_WAYS("cancel before start") {
  auto comms = Connected(2);
  std::vector<float> mine(10), theirs(10);
  Ending other = AllReduce(*comms[1], theirs);
  comms[0]->Cancel({1, 0});
  Ending ending = AllReduce(*comms[0], mine);
  CHECK_STATUS(Wait(ending), StatusCode::kCancelled);
  const Status status = Wait(other);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), Rank(0));
}

TEST_CASE_IN_BOTH_WAYS("cancel after end") {
  auto comms = Connected(2);
  for (int step = 0; step < 2; ++step) {
    std::vector<float> mine(10, 1), theirs(10, 2);
    Ending first = AllReduce(*comms[0], mine), second = AllReduce(*comms[1], theirs);
    CHECK_OK(Wait(first));
    CHECK_OK(Wait(second));
    CHECK((mine[9] == 3 && theirs[9] == 3));
    comms[0]->Cancel({1, static_cast<uint64_t>(step)});
  }
  CHECK_OK(comms[0]->status());
}

void TestLeave(int size) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values(size, std::vector<float>(50000, 1));
  // A collective that the leaving rank has completed still completes on ranks that start it later.
  std::vector<float> sent(10 * size, 5), received(10);
  Ending root = Scatter(*comms[1], sent, 1, {3, "early"});
  if (size == 2) CHECK_OK(Wait(root));
  comms[1]->Leave();
  if (size == 2) {
    Ending late = Scatter(*comms[0], received, 1, {3, "early"});
    CHECK_OK(Wait(late));
    CHECK(received == std::vector<float>(10, 5));
  }
  auto endings = ReduceWithout(comms, 1, &values, {1, "last"});
  for (int rank = 0; rank < size; ++rank) {
    if (rank == 1) continue;
    const Status status = Wait(endings[rank]);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "all_reduce 'last' needs " + Rank(1));
    CHECK_CONTAINS(status.message(), "which has finished its program");
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
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "all_reduce 'pending' needs " + Rank(1));
  }
}

// Leaving and closing after a collective does not disturb ranks that have not completed it.
void TestLeaveAndClose(int size) {
  for (int step = 0; step < 20; ++step) {
    auto comms = Connected(size);
    OnRanks(size, [&](int rank) {
      std::vector<float> values(30, rank + 1);
      Ending ending = AllReduce(*comms[rank], values);
      CHECK_OK(Wait(ending));
      CHECK(values[29] == size * (size + 1) / 2);
      std::vector<float> large(100000, rank);
      Ending broadcast = Broadcast(*comms[rank], large, 1, {2});
      CHECK_OK(Wait(broadcast));
      CHECK(large[99999] == 1);
      comms[rank]->Leave();
      comms[rank]->Close();
    });
  }
}

// A rank that leaves during a collective still takes part in it, until it closes.
TEST_CASE_IN_BOTH_WAYS("leave in the middle") {
  for (const bool owes_data : {true, false}) {
    auto comms = Connected(3);
    std::vector<std::vector<float>> values(3, std::vector<float>(200000, 1));
    // Without rank 2 no rank can finish; rank 1 has opened the collective and then leaves.
    Ending pending = AllReduce(*comms[0], values[0], {1, "half", "", 0});
    Ending given_up = AllReduce(*comms[1], values[1], {1, "half", "", 0});
    CHECK(StillRuns(pending, 0.05));
    comms[1]->Leave();
    if (owes_data) {
      comms[1]->Close();
      CHECK_STATUS(Wait(given_up), StatusCode::kUnavailable);
      Ending last = AllReduce(*comms[2], values[2], {1, "half", "", 0});
      for (Ending* ending : {&pending, &last}) {
        const Status status = Wait(*ending, 5);
        CHECK_STATUS(status, StatusCode::kUnavailable);
        CHECK_CONTAINS(status.message(), Rank(1));
      }
    } else {
      Ending last = AllReduce(*comms[2], values[2], {1, "half", "", 0});
      CHECK_OK(Wait(pending));
      CHECK_OK(Wait(given_up));
      CHECK_OK(Wait(last));
      CHECK(values[0][199999] == 3);
    }
  }
}

TEST_CASE_IN_BOTH_WAYS("close") {
  auto comms = Connected(2);
  std::vector<float> values(10);
  Ending ending = AllReduce(*comms[0], values);
  comms[0]->Close();
  const Status status = Wait(ending);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "rank 0 of 2: the communicator was closed here");
  Ending later = AllReduce(*comms[0], values, {2, "later"});
  CHECK_CONTAINS(Wait(later).message(), "the communicator was closed here");
  comms[0]->Close();
}

TEST_CASE_IN_BOTH_WAYS("death") {
  for (const int size : {2, 3, 4}) {
    for (int victim = 0; victim < size; ++victim) TestDeath(size, victim);
    TestDeathWhileIdle(size);
    TestAbort(size);
    TestCancel(size);
    TestLeave(size);
    TestLeaveUnderWay(size);
    TestLeaveAndClose(size);
  }
}

}  // namespace
}  // namespace tfdist::testing::faults_test
