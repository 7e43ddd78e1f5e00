// Thousands of collectives of every kind in any order, and hundreds of communicators: results are
// exact and no descriptor leaks.
#include <algorithm>
#include <random>

#include "collectives/jobs.h"
#include "core/math/combine.h"
#include "core/trace/event_ring.h"

namespace tfdist::testing::stress_test {
namespace {

using Random = std::mt19937_64;

constexpr int kBatch = 50;  // collectives in flight on a rank

// A collective derived from its key, so that it is the same on every rank.
Job RandomJob(uint64_t key, int size) {
  Random random(key);
  const Method& method = kMethods[random() % kMethods.size()];
  Job job;
  job.kind = method.kind;
  if (random() % 2 == 0) job.algorithm = method.algorithm;
  job.size = size;
  job.key = key;
  const size_t sizes[] = {0, 1, 2, 17, 500, 3000, 20000};
  job.count = sizes[random() % 7];
  job.dtype = kReducible[random() % kReducible.size()];
  job.op = static_cast<ReduceOp>(1 + random() % 5);
  if (!CanReduce(job.dtype, job.op)) job.op = ReduceOp::kSum;
  job.root = static_cast<int>(random() % size);
  job.in_place = job.kind == CollectiveKind::kAllReduce && random() % 2 == 0;
  job.even = random() % 2 == 0;
  return job;
}

void TestRandomCollectives(int size, int collectives) {
  auto comms = ConnectedOn(size, 2);
  OnRanks(size, [&](int rank) {
    Random random(1000 + rank);
    for (int first = 0; first < collectives; first += kBatch) {
      std::vector<Job> jobs;
      for (int i = 0; i < kBatch; ++i) jobs.push_back(RandomJob(first + i, size));
      std::shuffle(jobs.begin(), jobs.end(), random);
      std::vector<std::unique_ptr<Job::Running>> running;
      for (const Job& job : jobs) running.push_back(job.Start(*comms[rank]));
      for (int i = 0; i < kBatch; ++i) jobs[i].Check(*comms[rank], *running[i]);
    }
    CHECK(comms[rank]->stats().collectives == static_cast<uint64_t>(collectives));
  });
}

// A communicator of all ranks and two of subsets, used concurrently and in any order.
void TestGroups(int collectives) {
  const std::vector<std::vector<int>> groups = {{0, 1, 2, 3}, {0, 2}, {1, 2, 3}};
  std::vector<Ranks> comms;
  for (const auto& members : groups) comms.push_back(Connected(static_cast<int>(members.size())));
  OnRanks(4, [&](int rank) {
    Random random(2000 + rank);
    for (int first = 0; first < collectives; first += kBatch) {
      std::vector<std::pair<Job, Communicator*>> mine;
      for (int key = first; key < first + kBatch; ++key) {
        const std::vector<int>& members = groups[key % groups.size()];
        const auto position = std::find(members.begin(), members.end(), rank);
        if (position == members.end()) continue;
        mine.emplace_back(RandomJob(key, static_cast<int>(members.size())),
                          comms[key % groups.size()][position - members.begin()].get());
      }
      std::shuffle(mine.begin(), mine.end(), random);
      std::vector<std::unique_ptr<Job::Running>> running;
      for (const auto& [job, comm] : mine) running.push_back(job.Start(*comm));
      for (size_t i = 0; i < mine.size(); ++i) mine[i].first.Check(*mine[i].second, *running[i]);
    }
  });
}

TEST_CASE_IN_BOTH_WAYS("many communicators") {
  const auto once = [](int turn) {
    const int size = 2 + turn % 3;
    auto comms = Connected(size);
    OnRanks(size, [&](int rank) {
      std::vector<float> values(100, rank + turn);
      Ending ending = AllReduce(*comms[rank], values);
      CHECK_OK(Wait(ending));
      CHECK(values[99] == size * turn + size * (size - 1) / 2);
      // Some ranks leave and close while others are not finished, some leave, and some are only
      // destroyed.
      if (turn % 3 > 0) comms[rank]->Leave();
      if (turn % 3 > 1) comms[rank]->Close();
    });
  };
  once(0);
  FailureDescriptor();  // it stays open from the first failure on
  const int before = OpenDescriptors();
  for (int turn = 1; turn <= Rounds(200); ++turn) once(turn);
  Eventually([&] { return OpenDescriptors() <= before; });
  CHECK(OpenDescriptors() <= before);
}

// Collectives that several threads start while the communicator ends: each ends exactly once, and
// soon.
void TestEndUnderLoad(const std::function<void(Communicator&)>& end) {
  for (int turn = 0; turn < Rounds(10); ++turn) {
    auto comms = Connected(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      for (uint64_t key = 0; key < 3; ++key) {
        threads.emplace_back([&comms, rank, key] {
          for (bool ended = false; !ended;) {
            std::vector<float> values(key * 10000 + 1, 1);
            Ending ending = AllReduce(*comms[rank], values, {key});
            const Status status = Wait(ending);
            if (status.ok()) CHECK(values.back() == 2);
            ended = !status.ok();
          }
        });
      }
    }
    CHECK(Eventually([&] { return comms[0]->stats().collectives > 20; }));
    end(*comms[turn % 2]);
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_CASE_IN_BOTH_WAYS("random collectives") {
  for (const int size : {2, 3, 5}) TestRandomCollectives(size, Rounds(5) * kBatch);
}

TEST_CASE_IN_BOTH_WAYS("groups") { TestGroups(Rounds(40) * kBatch); }

TEST_CASE_IN_BOTH_WAYS("end under load") {
  TestEndUnderLoad([](Communicator& comm) { comm.Close(); });
  TestEndUnderLoad([](Communicator& comm) { comm.Leave(); });
  TestEndUnderLoad(
      [](Communicator& comm) { comm.Abort(Status(StatusCode::kUnavailable, "enough")); });
}

}  // namespace
}  // namespace tfdist::testing::stress_test
