// Faults in every collective by every algorithm: a rank that dies, a rank that does not start it,
// ranks that disagree, and invalid calls.
#include "collectives/jobs.h"

namespace tfdist::testing::algorithm_faults_test {
namespace {

constexpr int kSize = 4;
constexpr size_t kLarge = 100000;  // float32: more than is sent eagerly

Job JobOf(const Method& method, size_t count) {
  Job job;
  job.kind = method.kind;
  job.algorithm = method.algorithm;
  job.size = kSize;
  job.count = count;
  job.root = 1;
  job.even = true;
  return job;
}

// Whether each rank needs data of every other.
bool NeedsAll(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kAllGather || kind == CollectiveKind::kAllToAll ||
         kind == CollectiveKind::kBarrier;
}

// A rank that has all its data may have finished; its communicator detects the death nevertheless.
void ExpectLost(Communicator& comm, Ending& ending, const Method& method, int victim,
                bool may_finish) {
  const Status status = Wait(ending);
  if (!may_finish && NeedsAll(method.kind)) CHECK_STATUS(status, StatusCode::kUnavailable);
  if (!status.ok()) CHECK_CONTAINS(status.message(), "lost " + Rank(victim));
  CHECK(Eventually([&] { return !comm.status().ok(); }));
  CHECK_STATUS(comm.status(), StatusCode::kUnavailable);
  CHECK_CONTAINS(comm.status().message(), "lost " + Rank(victim));
}

void TestDeath(const Method& method, int victim, bool under_way) {
  Ranks comms = ConnectedOn(kSize, 2);
  const Job job = JobOf(method, kLarge);
  const TimePoint start = Clock::now();
  std::vector<std::unique_ptr<Job::Running>> running(kSize);
  for (int rank = 0; rank < kSize; ++rank) {
    if (under_way || rank != victim) running[rank] = job.Start(*comms[rank]);
  }
  if (under_way) {
    CHECK(Eventually([&] {
      const CommunicatorStats stats = comms[victim]->stats();
      return stats.bytes_received > 0 || stats.bytes_sent > 0 || stats.collectives > 0;
    }));
  }
  comms[victim]->Close();
  for (int rank = 0; rank < kSize; ++rank) {
    if (rank == victim) continue;
    ExpectLost(*comms[rank], running[rank]->ending, method, victim, under_way);
  }
  CHECK(SecondsSince(start) < 10);
}

// All methods concurrently, because each takes as long as its deadline.
void TestAbsent(int absent) {
  std::vector<Ranks> comms;
  std::vector<std::vector<std::unique_ptr<Job::Running>>> running;
  for (const Method& method : kMethods) {
    comms.push_back(ConnectedOn(kSize, 2));
    running.emplace_back(kSize);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == absent) continue;
      running.back()[rank] = JobOf(method, kLarge).Start(*comms.back()[rank], 0.5);
    }
  }
  for (size_t i = 0; i < kMethods.size(); ++i) {
    int finished = 0;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == absent) continue;
      const Status status = Wait(running[i][rank]->ending);
      if (status.ok()) {
        ++finished;
        continue;
      }
      CHECK_STATUS(status, StatusCode::kDeadlineExceeded);
      CHECK_CONTAINS(status.message(), "waited 0.5 s for ");
      // On a busy machine other ranks may be late and named too.
      CHECK_CONTAINS(status.message(), Rank(absent));
      CHECK_CONTAINS(status.message(), "which has not started it");
    }
    CHECK(finished < (NeedsAll(kMethods[i].kind) ? 1 : kSize - 1));
  }
}

// The last rank runs a different collective: every rank gets an error that describes both.
void TestDisagreement(const Job& ours, const Job& theirs, const std::string& our_text,
                      const std::string& their_text) {
  for (const size_t count : {size_t{10}, kLarge}) {
    Ranks comms = Connected(kSize);
    std::vector<std::unique_ptr<Job::Running>> running;
    for (int rank = 0; rank < kSize; ++rank) {
      Job job = rank == kSize - 1 ? theirs : ours;
      job.count += count;
      running.push_back(job.Start(*comms[rank]));
    }
    for (int rank = 0; rank < kSize; ++rank) {
      const Status status = Wait(running[rank]->ending);
      if (!status.ok()) CHECK_STATUS(status, StatusCode::kInvalidArgument);
      CHECK(Eventually([&] { return !comms[rank]->status().ok(); }));
      CHECK_STATUS(comms[rank]->status(), StatusCode::kInvalidArgument);
      CHECK_CONTAINS(comms[rank]->status().message(), "the ranks disagree on a collective");
      CHECK_CONTAINS(comms[rank]->status().message(), our_text);
      CHECK_CONTAINS(comms[rank]->status().message(), their_text);
    }
  }
}

TEST_CASE("disagreements") {
  for (const Method& method : kMethods) {
    const Job ours = JobOf(method, 0);
    if (HasRoot(method.kind)) {
      Job theirs = ours;
      theirs.root = 3;
      TestDisagreement(ours, theirs, "(root 1)", "(root 3)");
    }
    if (Reduces(method.kind)) {
      Job theirs = ours;
      theirs.op = ReduceOp::kMax;
      TestDisagreement(ours, theirs, "(sum)", "(max)");
    }
    if (HasBlocks(method.kind)) {
      Job theirs = ours;
      theirs.count = 2;
      const std::string text = method.kind == CollectiveKind::kAllToAll ? "sends " : "blocks of ";
      TestDisagreement(ours, theirs, text + "4", text + "4");
    }
    Job theirs = ours;
    theirs.kind = method.kind == CollectiveKind::kBarrier ? CollectiveKind::kGather
                                                          : CollectiveKind::kBarrier;
    theirs.algorithm = Algorithm::kAuto;
    TestDisagreement(ours, theirs, "barrier 'job 1'", "'job 1'");
  }
  Job ring = JobOf({CollectiveKind::kAllReduce, Algorithm::kRing}, 0), tree = ring;
  tree.algorithm = Algorithm::kRecursiveDoubling;
  TestDisagreement(ring, tree, "by ring", "by recursive doubling");
}

TEST_CASE("splits are named") {
  Ranks comms = Connected(2);
  std::vector<Ending> endings;
  std::vector<std::vector<int32_t>> in(2, std::vector<int32_t>(10)), out = in;
  for (int rank = 0; rank < 2; ++rank) {
    auto [options, ending] = Prepare(*comms[rank], {5, "routes"});
    // Rank 0 sends 8 bytes to rank 1, which expects 12.
    const std::vector<size_t> send =
        rank == 0 ? std::vector<size_t>{4, 8} : std::vector<size_t>{16, 4};
    const std::vector<size_t> receive =
        rank == 0 ? std::vector<size_t>{4, 16} : std::vector<size_t>{12, 4};
    comms[rank]->AllToAll(std::move(options), DType::kInt32, send, receive,
                          FlatView({{in[rank].data(), send[0] + send[1]}}),
                          FlatView({{out[rank].data(), receive[0] + receive[1]}}));
    endings.push_back(std::move(ending));
  }
  for (Ending& ending : endings) {
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "all_to_all 'routes'");
    CHECK_CONTAINS(status.message(), "sends 4, 8 bytes receives 4, 16 bytes");
    CHECK_CONTAINS(status.message(), "sends 16, 4 bytes receives 12, 4 bytes");
  }
}

// Calls that fail at once, on this rank only.
TEST_CASE("misuse") {
  Ranks comms = Connected(2);
  std::vector<float> values(6);
  const FlatView all = View(values), half({{values.data(), 12}}), none;
  const std::vector<size_t> halves = {12, 12};
  const auto refused = [&](const std::string& text, const auto& start,
                           Algorithm algorithm = Algorithm::kAuto) {
    auto [options, ending] = Prepare(*comms[0], {5, "x", "", 20, algorithm});
    start(*comms[0], std::move(options));
    const Status status = Wait(ending);
    CHECK_STATUS(status, StatusCode::kInvalidArgument);
    CHECK_CONTAINS(status.message(), "rank 0 of 2: " + text);
  };
  using Comm = Communicator;
  using Options = CollectiveOptions;
  const DType f32 = DType::kFloat32;
  const ReduceOp sum = ReduceOp::kSum;
  for (const int root : {-1, 2}) {
    const std::string text = StrCat(" 'x' expected a root from 0 to 1, received ", root);
    refused("reduce" + text, [&](Comm& comm, Options options) {
      comm.Reduce(std::move(options), all, all, f32, sum, root);
    });
    refused("gather" + text, [&](Comm& comm, Options options) {
      comm.Gather(std::move(options), f32, halves, root, half, all);
    });
    refused("scatter" + text, [&](Comm& comm, Options options) {
      comm.Scatter(std::move(options), f32, halves, root, all, half);
    });
  }
  refused("all_reduce 'x' cannot reduce bool[24] by mean", [&](Comm& comm, Options options) {
    comm.AllReduce(std::move(options), all, all, DType::kBool, ReduceOp::kMean);
  });
  refused("all_reduce 'x' cannot reduce bytes[24] by sum", [&](Comm& comm, Options options) {
    comm.AllReduce(std::move(options), all, all, DType::kBytes, sum);
  });
  refused("all_reduce 'x' expected input and output of 24 and 24 bytes, received 12 and 24",
          [&](Comm& comm, Options options) {
            comm.AllReduce(std::move(options), half, all, f32, sum);
          });
  refused(
      "reduce 'x' expected input and output of 24 and 0 bytes, received 24 and 24",
      [&](Comm& comm, Options options) { comm.Reduce(std::move(options), all, all, f32, sum, 1); });
  refused("reduce_scatter 'x' expected 2 sizes of blocks, received 1",
          [&](Comm& comm, Options options) {
            comm.ReduceScatter(std::move(options), all, half, f32, sum, {24});
          });
  refused("all_to_all 'x' expected 4 sizes of blocks, received 3",
          [&](Comm& comm, Options options) {
            comm.AllToAll(std::move(options), f32, halves, {24}, all, all);
          });
  refused("all_to_all 'x' sends itself 12 bytes and expects 16", [&](Comm& comm, Options options) {
    comm.AllToAll(std::move(options), f32, halves, {16, 8}, all, all);
  });
  refused(
      "broadcast 'x' has no algorithm 'ring'",
      [&](Comm& comm, Options options) { comm.Broadcast(std::move(options), f32, 0, all); },
      Algorithm::kRing);
  CHECK_OK(comms[0]->status());
}

TEST_CASE("death") {
  int turn = 0;
  for (const Method& method : kMethods) {
    ++turn;
    for (int victim = 0; victim < kSize; ++victim) {
      if (share == 1 || victim == turn % kSize) TestDeath(method, victim, victim % 2 == 0);
    }
    if (share == 1 || turn % 2 == 0) TestDeath(method, 1, true);
  }
}

TEST_CASE("absent") {
  for (const int absent : {0, 1, 3}) TestAbsent(absent);
}

}  // namespace
}  // namespace tfdist::testing::algorithm_faults_test
