// WaitedFor tells for how long a rank has had a collective that a peer had not started, and
// TakeLongestWait which one; bytes are counted by peer.
#include "collectives/calls.h"
#include "collectives/joins.h"

namespace tfdist::testing::waits_test {
namespace {

constexpr double kLate = 0.3;  // s

double Waited(const Communicator& comm, int peer) {
  return 1e-9 * static_cast<double>(comm.WaitedFor(peer));
}

// Rank 2 is late for two collectives at once, which are one wait; a third is not over yet.
TEST_CASE("names the late rank") {
  Ranks comms = Connected(3);
  std::vector<std::vector<float>> values(9, std::vector<float>(10, 1));
  // In a ring of three every rank is a peer of the others.
  const What calls[] = {{1, "a", "", 20, Algorithm::kRing},
                        {2, "b", "", 20, Algorithm::kRing},
                        {3, "c", "", 20, Algorithm::kRing}};
  const TimePoint begun = Clock::now();
  std::vector<Ending> endings;
  for (int rank : {0, 1}) {
    for (int i = 0; i < 2; ++i) {
      endings.push_back(AllReduce(*comms[rank], values[3 * rank + i], calls[i]));
    }
  }
  // It grows while the collectives wait.
  for (int rank : {0, 1}) {
    CHECK(Eventually([&] { return Waited(*comms[rank], 2) > kLate; }));
  }
  CHECK(Waited(*comms[0], 2) <= SecondsSince(begun));
  for (int i = 0; i < 2; ++i) endings.push_back(AllReduce(*comms[2], values[6 + i], calls[i]));
  for (Ending& ending : endings) CHECK_OK(Wait(ending));
  const double elapsed = SecondsSince(begun);
  for (int rank : {0, 1}) {
    CHECK(Waited(*comms[rank], 2) > kLate);
    CHECK(Waited(*comms[rank], 2) <= elapsed);
    CHECK(Waited(*comms[rank], rank) == 0);
  }
  for (int rank : {0, 1}) {
    const std::string longest = comms[rank]->TakeLongestWait(2);
    CHECK((longest == "all_reduce 'a'" || longest == "all_reduce 'b'"));
    CHECK(comms[rank]->TakeLongestWait(2).empty());
  }
  // The others had started before it: it has waited for none.
  CHECK(Waited(*comms[2], 0) < kLate / 2);
  CHECK(Waited(*comms[2], 1) < kLate / 2);
  // The time of an ended wait does not grow, and a failed collective ends its waits.
  const uint64_t before = comms[0]->WaitedFor(2);
  CHECK(Eventually([&] { return SecondsSince(begun) > elapsed + 0.02; }));
  CHECK(comms[0]->WaitedFor(2) == before);
  Ending third = AllReduce(*comms[0], values[2], calls[2]);
  CHECK(Eventually([&] { return comms[0]->WaitedFor(2) > before; }));
  comms[2]->Abort(Status(StatusCode::kUnavailable, "the end"));
  CHECK(!Wait(third).ok());
  const uint64_t after = comms[0]->WaitedFor(2);
  const TimePoint ended = Clock::now();
  CHECK(Eventually([&] { return SecondsSince(ended) > 0.02; }));
  CHECK(comms[0]->WaitedFor(2) == after);
}

// Ranks that have joined wait for each other from the start of the collective for which they stand
// in, not from the end of their former wait.
TEST_CASE("stand ins wait") {
  Ranks comms = Connected(3);
  std::vector<std::unique_ptr<Joined>> joined;
  for (int rank : {0, 1}) joined.push_back(Join(*comms[rank]));
  const TimePoint joining = Clock::now();
  CHECK(Eventually([&] { return SecondsSince(joining) > kLate; }));
  const double before[] = {Waited(*comms[0], 1), Waited(*comms[1], 0)};
  const TimePoint begun = Clock::now();
  std::vector<float> values(10, 1);
  for (uint64_t key = 1; key <= 20; ++key) {
    Ending ending = AllReduce(*comms[2], values, {key, "d", "", 20, Algorithm::kRing});
    CHECK_OK(Wait(ending));
  }
  joined.push_back(Join(*comms[2]));
  for (const auto& one : joined) CHECK_OK(Wait(one->ending));
  const double elapsed = SecondsSince(begun);
  for (int rank : {0, 1}) CHECK(Waited(*comms[rank], 1 - rank) - before[rank] <= elapsed);
}

// The bytes sent to each rank equal the bytes that it has received, and their sum equals the total.
TEST_CASE("traffic by peer") {
  constexpr int kRanks = 3;
  Ranks comms = Connected(kRanks);
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(1000, 1));
  const What call = {1, "a", "", 20, Algorithm::kRing};
  std::vector<Ending> endings;
  for (int rank = 0; rank < kRanks; ++rank) {
    endings.push_back(AllReduce(*comms[rank], values[rank], call));
  }
  for (Ending& ending : endings) CHECK_OK(Wait(ending));
  for (int rank = 0; rank < kRanks; ++rank) {
    uint64_t sent = 0, received = 0;
    int receivers = 0;
    for (int peer = 0; peer < kRanks; ++peer) {
      sent += comms[rank]->BytesSentTo(peer);
      receivers += comms[rank]->BytesSentTo(peer) > 0 ? 1 : 0;
      received += comms[rank]->BytesReceivedFrom(peer);
      CHECK(comms[rank]->BytesSentTo(peer) == comms[peer]->BytesReceivedFrom(rank));
    }
    CHECK((sent == comms[rank]->stats().bytes_sent && sent > 0));
    CHECK(received == comms[rank]->stats().bytes_received);
    CHECK(receivers == 1);  // in a ring
  }
}

}  // namespace
}  // namespace tfdist::testing::waits_test
