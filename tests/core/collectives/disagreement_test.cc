// Ranks that run different collectives: an error that names both sides, at once or at the deadline.
#include "collectives/calls.h"

namespace tfdist::testing::disagreement_test {
namespace {

void TestDeadline(int size, int absent) {
  auto comms = Connected(size);
  std::vector<std::vector<float>> values;
  const TimePoint start = Clock::now();
  auto endings = ReduceWithout(comms, absent, &values, {1, "dense/kernel", "float[100000]", 0.2});
  for (int rank = 0; rank < size; ++rank) {
    if (rank == absent) continue;
    const Status status = Wait(endings[rank]);
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
    CHECK_CONTAINS(status.message(),
                   "all_reduce 'dense/kernel' float[100000] waited 0.2 s for " + Rank(absent));
    CHECK_CONTAINS(status.message(), "which has not started it and has no collective pending");
  }
  CHECK((SecondsSince(start) > 0.19 && SecondsSince(start) < 10));
}

TEST_CASE_IN_BOTH_WAYS("no deadline") {
  auto comms = Connected(2);
  std::vector<float> mine(10, 1), theirs(10, 2);
  Ending first = AllReduce(*comms[0], mine, {1, "patient", "", 0});
  CHECK(StillRuns(first, 0.3));
  Ending second = AllReduce(*comms[1], theirs, {1, "patient", "", 0});
  CHECK_OK(Wait(first));
  CHECK_OK(Wait(second));
  CHECK((mine[0] == 3 && theirs[0] == 3));
}

// Different collectives with the same key.
void TestDisagreement(const std::function<Ending(Communicator&)>& first,
                      const std::function<Ending(Communicator&)>& second,
                      const std::string& first_text, const std::string& second_text) {
  for (const int size : {2, 3, 4}) {
    auto comms = Connected(size);
    std::vector<Ending> endings;
    for (int rank = 0; rank < size; ++rank) {
      endings.push_back((rank == size - 1 ? second : first)(*comms[rank]));
    }
    for (int rank = 0; rank < size; ++rank) {
      const Status status = Wait(endings[rank]);
      CHECK_STATUS(status, StatusCode::kInvalidArgument);
      CHECK_CONTAINS(status.message(), first_text);
      CHECK_CONTAINS(status.message(), second_text);
      CHECK_CONTAINS(status.message(), "from rank ");
    }
  }
}

TEST_CASE_IN_BOTH_WAYS("disagreements") {
  static std::vector<float> memory(4 * 30000);  // not read or written before the ranks agree
  const auto reduce = [](const std::string& name, const std::string& shapes, size_t bytes,
                         DType dtype, ReduceOp op) {
    return [=](Communicator& comm) {
      auto [options, ending] = Prepare(comm, {7, name, shapes});
      auto* const piece = memory.data() + comm.rank() * 30000;
      comm.AllReduce(std::move(options), FlatView({{piece, bytes}}), FlatView({{piece, bytes}}),
                     dtype, op);
      return std::move(ending);
    };
  };
  const auto broadcast = [](int root) {
    return [=](Communicator& comm) {
      auto [options, ending] = Prepare(comm, {7, "c", "float[10]"});
      comm.Broadcast(std::move(options), DType::kFloat32, root,
                     FlatView({{memory.data() + comm.rank() * 30000, 40}}));
      return std::move(ending);
    };
  };
  const auto gather = [](Communicator& comm) {
    auto [options, ending] = Prepare(comm, {7, "d", "float[10]"});
    comm.AllGather(std::move(options), DType::kFloat32, std::vector<size_t>(comm.size(), 40),
                   FlatView({{memory.data() + comm.rank() * 30000, 40u * comm.size()}}));
    return std::move(ending);
  };
  const ReduceOp sum = ReduceOp::kSum;
  const auto a = reduce("a", "float[10]", 40, DType::kFloat32, sum);
  const std::string a_text = "all_reduce 'a' (sum) float[10]";
  TestDisagreement(a, reduce("b", "float[12]", 48, DType::kFloat32, sum), a_text,
                   "all_reduce 'b' (sum) float[12]");
  TestDisagreement(a, reduce("b", "float[2,5]", 40, DType::kFloat32, sum), a_text,
                   "all_reduce 'b' (sum) float[2,5]");
  TestDisagreement(a, reduce("b", "int32[10]", 40, DType::kInt32, sum), a_text,
                   "all_reduce 'b' (sum) int32[10]");
  TestDisagreement(a, reduce("b", "float[10]", 40, DType::kFloat32, ReduceOp::kMean), a_text,
                   "all_reduce 'b' (mean) float[10]");
  // One is small enough for an eager send, the other waits for its peer.
  TestDisagreement(a, reduce("b", "float[30000]", 120000, DType::kFloat32, sum), a_text,
                   "all_reduce 'b' (sum) float[30000]");
  TestDisagreement(a, broadcast(0), a_text, "broadcast 'c' (root 0) float[10]");
  TestDisagreement(a, gather, a_text, "all_gather 'd' float[10]");
}

// A disagreement on the root is an error on every rank, at the latest in its next collective: a
// rank that received the right data may have ended before.
void TestDisagreementOnRoot(size_t count) {
  for (const int size : {2, 3, 4}) {
    auto comms = Connected(size);
    std::vector<std::vector<float>> values(size, std::vector<float>(count));
    std::vector<Ending> endings;
    for (int rank = 0; rank < size; ++rank) {
      const int root = rank == size - 1 ? size - 1 : 0;
      endings.push_back(Broadcast(*comms[rank], values[rank], root, {7, StrCat("from ", root)}));
    }
    for (int rank = 0; rank < size; ++rank) {
      const Status status = Wait(endings[rank]);
      if (!status.ok()) CHECK_STATUS(status, StatusCode::kInvalidArgument);
      CHECK(Eventually([&] { return !comms[rank]->status().ok(); }));
      CHECK_STATUS(comms[rank]->status(), StatusCode::kInvalidArgument);
      CHECK_CONTAINS(comms[rank]->status().message(), "broadcast 'from 0' (root 0)");
      CHECK_CONTAINS(comms[rank]->status().message(),
                     StrCat("broadcast 'from ", size - 1, "' (root ", size - 1, ")"));
      // Both ranks that consider themselves the root get the error.
      if (rank == 0 || rank == size - 1) CHECK(!status.ok());
    }
  }
}

// One rank has different shapes in a broadcast. It and the root get the error, even if the root
// sends it no data itself; the other ranks get it at the latest in their next collective.
void TestBroadcastOfAnother(size_t count) {
  for (const int size : {2, 3, 5}) {
    for (int other = 1; other < size; ++other) {
      auto comms = Connected(size);
      std::vector<std::vector<float>> values(size, std::vector<float>(count, 1));
      values[other].resize(count + 1);
      std::vector<Ending> endings;
      for (int rank = 0; rank < size; ++rank) {
        const size_t own = values[rank].size();
        endings.push_back(
            Broadcast(*comms[rank], values[rank], 0, {7, "weights", StrCat("float[", own, "]")}));
      }
      std::vector<float> next(3);
      for (int rank = 0; rank < size; ++rank) {
        Status status = Wait(endings[rank]);
        if (rank != 0 && rank != other && status.ok()) {
          CHECK(values[rank] == std::vector<float>(count, 1));
          Ending ending = AllReduce(*comms[rank], next);
          status = Wait(ending);
        }
        CHECK_STATUS(status, StatusCode::kInvalidArgument);
        CHECK_CONTAINS(status.message(), "the ranks disagree on a collective");
        for (const size_t shown : {count, count + 1}) {
          CHECK_CONTAINS(status.message(),
                         StrCat("broadcast 'weights' (root 0) float[", shown, "]"));
        }
      }
    }
  }
}

// The root waits until all ranks have started, and names a rank that has not.
TEST_CASE_IN_BOTH_WAYS("broadcast without") {
  for (const int size : {2, 5}) {
    auto comms = Connected(size);
    std::vector<std::vector<float>> values(size, std::vector<float>(10, 1));
    std::vector<Ending> endings(size);
    const auto broadcast = [&](int rank, double timeout) {
      endings[rank] =
          Broadcast(*comms[rank], values[rank], 0, {1, "weights", "float[10]", timeout});
    };
    for (int rank = 0; rank < size - 1; ++rank) broadcast(rank, 0);
    CHECK(Eventually(
        [&] { return comms[0]->Waiting(0).find("for " + Rank(size - 1)) != std::string::npos; }));
    broadcast(size - 1, 0);
    for (Ending& ending : endings) CHECK_OK(Wait(ending));
    for (int rank = 0; rank < size - 1; ++rank) broadcast(rank, 0.2);
    const Status status = Wait(endings[0]);
    CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
    CHECK_CONTAINS(status.message(), "waited 0.2 s for " + Rank(size - 1));
  }
}

// The error comes when two ranks have waited for each other for a tenth of the deadline.
TEST_CASE_IN_BOTH_WAYS("crossed collectives") {
  auto comms = Connected(3);
  std::vector<std::vector<float>> values(3, std::vector<float>(10));
  std::vector<Ending> endings;
  endings.push_back(AllReduce(*comms[0], values[0], {1, "loss", "float[10]", 5}));
  endings.push_back(AllReduce(*comms[1], values[1], {2, "weights", "float[10]", 5}));
  endings.push_back(AllReduce(*comms[2], values[2], {1, "loss", "float[10]", 5}));
  const TimePoint start = Clock::now();
  for (Ending& ending : endings) {
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "wait for each other in different collectives");
    CHECK_CONTAINS(status.message(), "all_reduce 'loss'");
    CHECK_CONTAINS(status.message(), "all_reduce 'weights'");
  }
  CHECK(Clock::now() - start < std::chrono::seconds(4));
}

// A slow rank is no error, for any number of stall checks.
TEST_CASE_IN_BOTH_WAYS("slow rank") {
  auto comms = Connected(2);
  std::vector<float> mine(10, 1), theirs(10, 2);
  Ending first = AllReduce(*comms[0], mine, {1, "loss", "float[10]", 3});
  CHECK(first.wait_for(std::chrono::milliseconds(1500)) == std::future_status::timeout);
  Ending second = AllReduce(*comms[1], theirs, {1, "loss", "float[10]", 3});
  CHECK_OK(Wait(first));
  CHECK_OK(Wait(second));
  CHECK((mine[0] == 3 && theirs[9] == 3));
}

TEST_CASE_IN_BOTH_WAYS("bad root") {
  auto comms = Connected(2);
  std::vector<float> values(3);
  for (const int root : {-1, 2}) {
    Ending ending = Broadcast(*comms[0], values, root, {1, "weights"});
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(),
                   StrCat("broadcast 'weights' expected a root from 0 to 1, received ", root));
  }
  CHECK_OK(comms[0]->status());
}

TEST_CASE_IN_BOTH_WAYS("deadline") {
  for (const int size : {2, 3, 4}) {
    for (int absent = 0; absent < size; ++absent) TestDeadline(size, absent);
  }
}

TEST_CASE_IN_BOTH_WAYS("disagreement on root") {
  for (const size_t count : {0, 10, 30000}) TestDisagreementOnRoot(count);
}

TEST_CASE_IN_BOTH_WAYS("broadcast of another") {
  for (const size_t count : {0, 10, 30000}) TestBroadcastOfAnother(count);
}

}  // namespace
}  // namespace tfdist::testing::disagreement_test
