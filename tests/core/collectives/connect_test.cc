// Connecting ranks, and the errors when they cannot.
#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/calls.h"

namespace tfdist::testing::connect_test {
namespace {

void TestConnectWithMissingRank() {
  std::vector<std::string> addresses;
  Ranks comms(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_OK(Communicator::Create(rank, 3, "", 0, &comms[rank]));
    addresses.push_back(StrCat("127.0.0.1:", comms[rank]->port()));
  }
  // Rank 2 dials the others and rank 0 is dialled: both cases of a missing rank.
  for (const int missing : {2, 0}) {
    Ranks present(3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == missing) continue;
      EXPECT_OK(Communicator::Create(rank, 3, "", 0, &present[rank]));
      addresses[rank] = StrCat("127.0.0.1:", present[rank]->port());
    }
    addresses[missing] = StrCat("127.0.0.1:", comms[missing]->port());
    OnRanks(3, [&](int rank) {
      if (rank == missing) return;
      const TimePoint start = Clock::now();
      const Status status = present[rank]->Connect(TestKey(), 1, addresses, 0.3);
      EXPECT_STATUS(status, StatusCode::kDeadlineExceeded);
      EXPECT_CONTAINS(status.message(), StrCat("rank ", missing, " (", addresses[missing], ")"));
      EXPECT(SecondsSince(start) < 2);
    });
  }
}

// A rank may be told of a failure while it still waits for another one.
void TestFailureWhileConnecting() {
  std::vector<std::string> addresses;
  Ranks comms(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_OK(Communicator::Create(rank, 3, "", 0, &comms[rank]));
    addresses.push_back(StrCat("127.0.0.1:", comms[rank]->port()));
  }
  std::atomic<int> ended{0};
  OnRanks(3, [&](int rank) {
    if (rank == 2) {  // never connects
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT(ended == 0);
      return comms[1]->Abort(Status(StatusCode::kUnavailable, "gave up"));
    }
    const TimePoint start = Clock::now();
    EXPECT_OK(comms[rank]->Connect(TestKey(), 1, addresses, 30));
    ++ended;
    EXPECT(SecondsSince(start) < 10);
    EXPECT_STATUS(comms[rank]->status(), StatusCode::kUnavailable);
  });
}

void TestConnectErrors() {
  std::unique_ptr<Communicator> gone, comm;
  EXPECT_OK(Communicator::Create(0, 2, "", 0, &gone));
  const std::string refused = StrCat("127.0.0.1:", gone->port());
  gone.reset();
  EXPECT_OK(Communicator::Create(1, 2, "", 0, &comm));
  std::vector<float> values(3);
  Ending premature = AllReduce(*comm, values, {1, "hasty"});
  const Status hasty = Wait(premature);
  EXPECT_STATUS(hasty, StatusCode::kFailedPrecondition);
  EXPECT_CONTAINS(hasty.message(), "all_reduce 'hasty' was started before Connect");
  const Status too_few = comm->Connect(TestKey(), 1, {refused}, 1);
  EXPECT_STATUS(too_few, StatusCode::kInvalidArgument);
  EXPECT_CONTAINS(too_few.message(), "expected 2 addresses, received 1");
  const Status status = comm->Connect(TestKey(), 1, {refused, "unused:1"}, 5);
  EXPECT_STATUS(status, StatusCode::kUnavailable);
  EXPECT_CONTAINS(status.message(), "cannot connect to rank 0 (" + refused + ")");
  EXPECT_STATUS(comm->Connect(TestKey(), 1, {refused, "unused:1"}, 5),
                StatusCode::kFailedPrecondition);
  std::unique_ptr<Communicator> none;
  EXPECT_STATUS(Communicator::Create(2, 2, "", 0, &none), StatusCode::kInvalidArgument);
  EXPECT_STATUS(Communicator::Create(0, 0, "", 0, &none), StatusCode::kInvalidArgument);
  const Status in_use = Communicator::Create(0, 2, "", comm->port(), &none);
  EXPECT_STATUS(in_use, StatusCode::kUnavailable);
  EXPECT_CONTAINS(in_use.message(), StrCat("cannot bind data port ", comm->port()));
}

void TestWrongKeyOrGeneration() {
  // A wrong key, and a wrong generation, as of a worker of an earlier job.
  for (const bool other_key : {true, false}) {
    std::unique_ptr<Communicator> host, stranger;
    EXPECT_OK(Communicator::Create(0, 2, "", 0, &host));
    EXPECT_OK(Communicator::Create(1, 2, "", 0, &stranger));
    const std::vector<std::string> addresses = {StrCat("127.0.0.1:", host->port()), "unused:1"};
    std::thread waiting([&] {
      const Status status = host->Connect(TestKey(), 1, addresses, 0.5);
      EXPECT_STATUS(status, StatusCode::kDeadlineExceeded);
      EXPECT_CONTAINS(status.message(), "no data connection from rank 1");
    });
    Key key = TestKey();
    if (other_key) key[15] ^= 1;
    const Status status = stranger->Connect(key, other_key ? 1 : 2, addresses, 5);
    EXPECT_STATUS(status, StatusCode::kUnavailable);
    EXPECT_CONTAINS(status.message(), "cannot connect to rank 0");
    waiting.join();
    EXPECT(host->stats().rejected_connections == 1);
  }
}

void Main() {
  TestConnectWithMissingRank();
  TestFailureWhileConnecting();
  TestConnectErrors();
  TestWrongKeyOrGeneration();
  std::puts("connect: ok");
}

REGISTER_TEST(Main);

}  // namespace
}  // namespace tfdist::testing::connect_test
