// Faults of joins: collectives without a stand-in, ranks that die or do not join, and misuse.
#include <string>

#include "collectives/jobs.h"
#include "collectives/joins.h"

namespace tfdist::testing::join_faults_test {
namespace {

// A collective in which a joined rank cannot take part fails on every rank, with the reason.
void TestRefused(CollectiveKind kind, const std::string& why) {
  constexpr int kSize = 3;
  Ranks comms = Connected(kSize);
  auto joined = Join(*comms[1]);
  Job job;
  job.kind = kind;
  job.size = kSize;
  job.count = 50000;
  job.root = 1;
  std::vector<std::unique_ptr<Job::Running>> running;
  for (const int rank : {0, 2}) running.push_back(job.Start(*comms[rank]));
  CHECK_STATUS(Wait(joined->ending), StatusCode::kInvalidArgument);
  for (const auto& comm : comms) {  // ranks that need no data of rank 1 may finish before
    CHECK(Eventually([&] { return !comm->status().ok(); }));
    CHECK_STATUS(comm->status(), StatusCode::kInvalidArgument);
    CHECK_CONTAINS(comm->status().message(), "rank 1 has joined and " + why);
  }
  for (const auto& one : running) one->ending.wait();
}

// A rank dies, leaves, or does not join, while others have joined.
TEST_CASE("failures") {
  {
    Ranks comms = Connected(3);
    auto first = Join(*comms[0]), second = Join(*comms[1]);
    CHECK(StillRuns(first->ending, 0.02));
    comms[2]->Close();
    for (Ending* ending : {&first->ending, &second->ending}) {
      const Status status = Wait(*ending);
      CHECK_STATUS(status, StatusCode::kUnavailable);
      CHECK_CONTAINS(status.message(), Rank(2));
    }
  }
  {
    Ranks comms = Connected(2);
    auto joined = Join(*comms[0]);
    comms[1]->Leave();
    const Status status = Wait(joined->ending);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "join 'the end' needs " + Rank(1));
  }
  {
    Ranks comms = Connected(3);
    auto first = Join(*comms[0], 0.2), second = Join(*comms[1], 20);
    const Status status = Wait(first->ending);
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
    CHECK_CONTAINS(status.message(), "join 'the end'");
    CHECK_CONTAINS(status.message(), Rank(2) + "127.0.0.1");
    CHECK_STATUS(Wait(second->ending), StatusCode::kDeadlineExceeded);
  }
  {  // A long wait is not an error, and other ranks may wait in other collectives.
    Ranks comms = Connected(3);
    auto first = Join(*comms[0], 3);
    std::vector<float> values(10, 1), others(10, 2);
    Ending reduce = AllReduce(*comms[1], values, {1, "slow", "", 3});
    CHECK(StillRuns(reduce, 0.8));
    Ending other = AllReduce(*comms[2], others, {1, "slow", "", 3});
    CHECK_OK(Wait(reduce));
    CHECK_OK(Wait(other));
    CHECK(values[0] == 3);
    auto second = Join(*comms[1]), third = Join(*comms[2]);
    for (Joined* joined : {first.get(), second.get(), third.get()}) {
      CHECK_OK(Wait(joined->ending));
      CHECK(joined->last_rank == 2);
    }
  }
}

// A step that is cancelled while its join waits for the others, or before the join starts.
TEST_CASE("cancel") {
  for (const bool before : {false, true}) {
    Ranks comms = Connected(2);
    std::vector<float> values(3);
    Ending other = AllReduce(*comms[1], values, {1});
    if (before) comms[0]->Cancel({77, 0});
    auto joined = Join(*comms[0]);
    if (!before) {
      CHECK_OK(Wait(other));
      comms[0]->Cancel({77, 0});
    }
    const Status status = Wait(joined->ending);
    CHECK_STATUS(status, StatusCode::kCancelled);
    CHECK_CONTAINS(status.message(), "cancelled join 'the end'");
    if (before) CHECK_STATUS(Wait(other), StatusCode::kUnavailable);
  }
}

TEST_CASE("misuse") {
  Ranks comms = Connected(2);
  auto first = Join(*comms[0]);
  auto again = Join(*comms[0]);
  CHECK_STATUS(Wait(again->ending), StatusCode::kFailedPrecondition);
  auto other = Join(*comms[1]);
  CHECK_OK(Wait(first->ending));
  CHECK_OK(Wait(other->ending));
  CHECK((first->last_rank == 1 && other->last_rank == 1));
  Ranks alone = Connected(1);
  auto only = Join(*alone[0]);
  CHECK_OK(Wait(only->ending));
  CHECK(only->last_rank == 0);
}

TEST_CASE("refused") {
  TestRefused(CollectiveKind::kAllToAll, "takes part in no all_to_all");
  TestRefused(CollectiveKind::kBroadcast, "cannot be its root");
  TestRefused(CollectiveKind::kScatter, "cannot be its root");
}

}  // namespace
}  // namespace tfdist::testing::join_faults_test
