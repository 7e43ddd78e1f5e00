// Collectives that start in the `done` of others, from many threads, and end on any thread.
#include <atomic>

#include "collectives/calls.h"

namespace tfdist::testing::inline_test {
namespace {

// A sequence of collectives: the `done` of each starts the next one, `left` times.
struct Chain {
  Chain(Communicator& comm, uint64_t key, size_t count) : comm(comm), key(key), values(count) {}

  void Next(int left) {
    std::fill(values.begin(), values.end(), static_cast<float>(comm.rank() + left));
    CollectiveOptions options;
    options.id = {key, comm.NextSequence(key)};
    options.timeout_seconds = 20;
    options.done = [this, left](const Status& status) {
      if (status.ok()) {
        const int size = comm.size();
        const float sum = static_cast<float>(size * left + size * (size - 1) / 2);
        CHECK_ALL(values, sum);
      }
      if (status.ok() && left > 0) return Next(left - 1);
      end.set_value(status);
    };
    comm.AllReduce(std::move(options), View(values), View(values), DType::kFloat32, ReduceOp::kSum);
  }

  Communicator& comm;
  const uint64_t key;
  std::vector<float> values;
  std::promise<Status> end;
};

// Empty collectives end at once. Nested calls of them would need a large stack.
void TestChains(int size) {
  for (const size_t count : {0, 3, 40000}) {
    auto comms = Connected(size);
    OnRanks(size, [&](int rank) {
      std::vector<std::unique_ptr<Chain>> chains;
      std::vector<std::thread> threads;
      for (uint64_t key = 0; key < 3; ++key) {
        chains.push_back(std::make_unique<Chain>(*comms[rank], key, count));
      }
      const int length = Rounds(count == 0 ? 3000 : count == 3 ? 300 : 30);
      for (auto& chain : chains) threads.emplace_back([&] { chain->Next(length); });
      for (auto& chain : chains) {
        Ending ending = chain->end.get_future();
        CHECK_OK(Wait(ending, 120));
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// A failed collective ends, and so does the next, which its `done` starts.
TEST_CASE_IN_BOTH_WAYS("chain that fails") {
  auto comms = Connected(2);
  Chain ours(*comms[0], 1, 3), theirs(*comms[1], 1, 3);
  std::thread other([&] { theirs.Next(1000000); });
  std::thread thread([&] { ours.Next(1000000); });
  CHECK(Eventually([&] { return comms[0]->stats().collectives > 100; }));
  comms[0]->Abort(Status(StatusCode::kUnavailable, "enough"));
  for (Chain* chain : {&ours, &theirs}) {
    Ending ending = chain->end.get_future();
    CHECK_CONTAINS(Wait(ending).message(), "enough");
  }
  thread.join();
  other.join();
}

// A deadline earlier than the one for which the communicator's thread sleeps.
TEST_CASE_IN_BOTH_WAYS("earlier deadline") {
  auto comms = Connected(2);
  std::vector<float> patient(3), hasty(3);
  Ending first = AllReduce(*comms[0], patient, {1, "patient", "", 0});
  CHECK(StillRuns(first, 0.05));
  Ending second = AllReduce(*comms[0], hasty, {2, "hasty", "", 0.2});
  CHECK_STATUS(Wait(second, 5), StatusCode::kDeadlineExceeded);
  CHECK_STATUS(Wait(first, 5), StatusCode::kDeadlineExceeded);
}

TEST_CASE_IN_BOTH_WAYS("chains") {
  for (const int size : {2, 3}) TestChains(size);
}

}  // namespace
}  // namespace tfdist::testing::inline_test
