// Connecting ranks, and the errors when they cannot.
#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/calls.h"

namespace tfdist::testing::connect_test {
namespace {

TEST_CASE("connect with missing rank") {
  std::vector<std::string> addresses;
  Ranks comms(3);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE_OK(Communicator::Create(rank, 3, "", 0, &comms[rank]));
    addresses.push_back(StrCat("127.0.0.1:", comms[rank]->port()));
  }
  // Rank 2 dials the others and rank 0 is dialled: both cases of a missing rank.
  for (const int missing : {2, 0}) {
    Ranks present(3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == missing) continue;
      REQUIRE_OK(Communicator::Create(rank, 3, "", 0, &present[rank]));
      addresses[rank] = StrCat("127.0.0.1:", present[rank]->port());
    }
    addresses[missing] = StrCat("127.0.0.1:", comms[missing]->port());
    OnRanks(3, [&](int rank) {
      if (rank == missing) return;
      const TimePoint start = Clock::now();
      const Status status = present[rank]->Connect(TestKey(), 1, addresses, 0.3);
      CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
      CHECK_CONTAINS(status.message(), StrCat("rank ", missing, " (", addresses[missing], ")"));
      CHECK(SecondsSince(start) < 10);
    });
  }
}

// A rank may be told of a failure while it still waits for another one.
TEST_CASE("failure while connecting") {
  std::vector<std::string> addresses;
  Ranks comms(3);
  for (int rank = 0; rank < 3; ++rank) {
    REQUIRE_OK(Communicator::Create(rank, 3, "", 0, &comms[rank]));
    addresses.push_back(StrCat("127.0.0.1:", comms[rank]->port()));
  }
  std::atomic<int> ended{0};
  OnRanks(3, [&](int rank) {
    if (rank == 2) {  // never connects
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      CHECK(ended == 0);
      return comms[1]->Abort(Status(StatusCode::kUnavailable, "gave up"));
    }
    const TimePoint start = Clock::now();
    REQUIRE_OK(comms[rank]->Connect(TestKey(), 1, addresses, 30));
    ++ended;
    CHECK(SecondsSince(start) < 10);
    CHECK_STATUS(comms[rank]->status(), StatusCode::kUnavailable);
  });
}

TEST_CASE("connect errors") {
  std::unique_ptr<Communicator> gone, comm;
  REQUIRE_OK(Communicator::Create(0, 2, "", 0, &gone));
  const std::string refused = StrCat("127.0.0.1:", gone->port());
  gone.reset();
  REQUIRE_OK(Communicator::Create(1, 2, "", 0, &comm));
  std::vector<float> values(3);
  Ending premature = AllReduce(*comm, values, {1, "hasty"});
  const Status hasty = Wait(premature);
  CHECK_STATUS(hasty, StatusCode::kFailedPrecondition);
  CHECK_CONTAINS(hasty.message(), "all_reduce 'hasty' was started before Connect");
  const Status too_few = comm->Connect(TestKey(), 1, {refused}, 1);
  CHECK_STATUS(too_few, StatusCode::kInvalidArgument);
  CHECK_CONTAINS(too_few.message(), "expected 2 addresses, received 1");
  const Status status = comm->Connect(TestKey(), 1, {refused, "unused:1"}, 5);
  CHECK_STATUS(status, StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), "cannot connect to rank 0 (" + refused + ")");
  CHECK_STATUS(comm->Connect(TestKey(), 1, {refused, "unused:1"}, 5),
               StatusCode::kFailedPrecondition);
  std::unique_ptr<Communicator> none;
  CHECK_STATUS(Communicator::Create(2, 2, "", 0, &none), StatusCode::kInvalidArgument);
  CHECK_STATUS(Communicator::Create(0, 0, "", 0, &none), StatusCode::kInvalidArgument);
  const Status in_use = Communicator::Create(0, 2, "", comm->port(), &none);
  CHECK_STATUS(in_use, StatusCode::kUnavailable);
  CHECK_CONTAINS(in_use.message(), StrCat("cannot bind data port ", comm->port()));
}

TEST_CASE("wrong key or generation") {
  // A wrong key, and a wrong generation, as a worker of an earlier job has.
  for (const bool other_key : {true, false}) {
    std::unique_ptr<Communicator> host, stranger;
    REQUIRE_OK(Communicator::Create(0, 2, "", 0, &host));
    REQUIRE_OK(Communicator::Create(1, 2, "", 0, &stranger));
    const std::vector<std::string> addresses = {StrCat("127.0.0.1:", host->port()), "unused:1"};
    std::thread waiting([&] {
      const Status status = host->Connect(TestKey(), 1, addresses, 0.5);
      CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
      CHECK_CONTAINS(status.message(), "no data connection from rank 1");
    });
    Key key = TestKey();
    if (other_key) key[15] ^= 1;
    const Status status = stranger->Connect(key, other_key ? 1 : 2, addresses, 5);
    CHECK_STATUS(status, StatusCode::kUnavailable);
    CHECK_CONTAINS(status.message(), "cannot connect to rank 0");
    waiting.join();
    CHECK(host->stats().rejected_connections == 1);
  }
}

}  // namespace
}  // namespace tfdist::testing::connect_test
