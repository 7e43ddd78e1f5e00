// Batched lookups, and prefetches.
#include <chrono>
#include <thread>

#include "ps/client/lookups.h"

namespace tfdist::testing::ps_client_lookup_groups_test {
namespace {

struct PendingLookup {
  ps::Memory rows;
  ps::LookupGroups::MemberPtr member = std::make_shared<ps::LookupGroups::Member>();
  Ending ending;
};

PendingLookup StartLookup(LookupJob& job, const ps::GroupKey& key, int table, int64_t id,
                          PendingLookup pending = {}) {
  pending.rows = Hold(Floats(2, -7));
  pending.ending = Start([&](ps::Done done) {
    job.lookups().LookupBatched(key, pending.member, {{table, {id}, pending.rows}}, true, done);
  });
  return pending;
}

bool Waits(Ending& ending) {
  return ending.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
}

TEST_CASE("groups") {
  LookupJob job(2);
  const int table = job.Make(2);
  job.lookups().groups().SetSize(1, 0, 3);
  const ps::GroupKey one{1, 0, 10, 0, 0}, other{1, 0, 11, 0, 0};
  PendingLookup a = StartLookup(job, one, table, 1), b = StartLookup(job, other, table, 2),
                c = StartLookup(job, one, table, 3);
  CHECK((Waits(a.ending) && Waits(b.ending) && Waits(c.ending)));
  PendingLookup last = StartLookup(job, one, table, 4);
  for (PendingLookup* each : {&a, &c, &last}) CHECK_OK(Wait(each->ending));
  CHECK(LookupJob::Values(c.rows, 2) == First({3}, 2));
  CHECK(job.client().tables().lookup_stats().lookups == 1);
  // A cancelled lookup ends, also if it is cancelled before it is added.
  job.lookups().groups().Cancel(b.member);
  CHECK_STATUS(Wait(b.ending), StatusCode::kCancelled);
  job.lookups().groups().Cancel(b.member);
  PendingLookup early;
  job.lookups().groups().Cancel(early.member);
  early = StartLookup(job, other, table, 2, std::move(early));
  CHECK_STATUS(Wait(early.ending), StatusCode::kCancelled);
  // Lookups of a group without a size, and of an unknown table, do not wait.
  PendingLookup alone = StartLookup(job, {2, 0, 10, 0, 0}, table, 5);
  CHECK_OK(Wait(alone.ending));
  PendingLookup unknown = StartLookup(job, one, 77, 5);
  CHECK_STATUS(Wait(unknown.ending), StatusCode::kInvalidArgument);
  PendingLookup open = StartLookup(job, one, table, 5);
  job.client().Close();
  CHECK_STATUS(Wait(open.ending), StatusCode::kCancelled);
  PendingLookup late = StartLookup(job, one, table, 5);
  CHECK_STATUS(Wait(late.ending), StatusCode::kCancelled);
}

// Concurrent executions of a group, some of which are cancelled.
TEST_CASE("groups at once") {
  LookupJob job(2);
  const int table = job.Make(2);
  job.lookups().groups().SetSize(1, 0, 2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int step = 0; step < 50; ++step) {
        const ps::GroupKey key{1, 0, thread * 1000 + step, 0, 0};
        PendingLookup a = StartLookup(job, key, table, step);
        std::thread canceller;
        if (step % 5 == 0) {
          canceller = std::thread([&] { job.lookups().groups().Cancel(a.member); });
        }
        PendingLookup b = StartLookup(job, key, table, step + 1);
        if (canceller.joinable()) canceller.join();
        const Status status = Wait(a.ending);
        if (status.ok()) {
          CHECK_OK(Wait(b.ending));
          CHECK(LookupJob::Values(a.rows, 2) == First({step}, 2));
        } else {
          CHECK_STATUS(status, StatusCode::kCancelled);
          job.lookups().groups().Cancel(b.member);
          CHECK_STATUS(Wait(b.ending), StatusCode::kCancelled);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Prefetch {
  ps::Prefetches::BatchPtr batch;
  Ending begun;
};

Prefetch Begin(LookupJob& job, uint64_t owner, std::vector<ps::TableLookup> lookups) {
  Status status;
  Prefetch prefetch;
  prefetch.batch = job.lookups().MakePrefetch(owner, std::move(lookups), true, &status);
  CHECK_OK(status);
  prefetch.begun =
      Start([&](ps::Done done) { job.lookups().prefetches().Begin(prefetch.batch, done); });
  return prefetch;
}

TEST_CASE("prefetch") {
  LookupJob job(2);
  const int table = job.Make(2), other = job.Make(3);
  const auto hits = [&] { return job.client().tables().lookup_stats().prefetch_hits; };
  Prefetch first = Begin(job, 1, {{table, {1, 2, 1}, {}}, {table, {3}, {}}, {other, {4}, {}}});
  CHECK_OK(Wait(first.begun));
  // The next prefetch of the same owner and table waits.
  Prefetch second = Begin(job, 1, {{table, {5}, {}}});
  CHECK(Waits(second.begun));
  job.Step(table, {1, 2, 3}, 2);
  CHECK(job.Lookup(table, {3}, 2) == First({3}, 2));
  CHECK(job.Lookup(table, {1, 2}, 2) == First({1, 2}, 2, 1));  // other ids
  CHECK(job.Lookup(table, {1, 2, 1}, 2, false) == First({1, 2, 1}, 2, 1));
  CHECK(job.Lookup(table, {1, 2, 1}, 2) == First({1, 2, 1}, 2));
  CHECK(Waits(second.begun));
  CHECK(job.Lookup(other, {4}, 3) == First({4}, 3));
  CHECK_OK(Wait(second.begun));
  CHECK(hits() == 3);
  // A prefetch is given up after two steps.
  Prefetch third = Begin(job, 1, {{table, {6}, {}}});
  job.Step(table, {5, 6}, 2);
  CHECK(Waits(third.begun));
  job.Step(table, {5, 6}, 2);
  CHECK_OK(Wait(third.begun));
  CHECK(job.Lookup(table, {5}, 2) == First({5}, 2, 2));
  CHECK(hits() == 3);
  // The prefetch of a later owner replaces it, but not a former owner's.
  Prefetch fourth = Begin(job, 2, {{table, {7}, {}}});
  CHECK_OK(Wait(fourth.begun));
  CHECK(job.Lookup(table, {6}, 2) == First({6}, 2, 2));
  CHECK(hits() == 3);
  Prefetch former = Begin(job, 1, {{table, {7}, {}}});
  CHECK_OK(Wait(former.begun));
  Prefetch cancelled = Begin(job, 2, {{table, {8}, {}}});
  CHECK(Waits(cancelled.begun));
  job.lookups().prefetches().Cancel(cancelled.batch);
  CHECK_STATUS(Wait(cancelled.begun), StatusCode::kCancelled);
  CHECK(job.Lookup(table, {7}, 2) == First({7}, 2));
  CHECK(hits() == 4);
  Status status;
  CHECK(job.lookups().MakePrefetch(1, {{77, {1}, {}}}, true, &status) == nullptr);
  CHECK_STATUS(status, StatusCode::kInvalidArgument);
  Prefetch current = Begin(job, 2, {{table, {9}, {}}}), open = Begin(job, 2, {{table, {9}, {}}});
  CHECK_OK(Wait(current.begun));
  job.client().Close();
  CHECK_STATUS(Wait(open.begun), StatusCode::kCancelled);
}

// For example of a batch that another worker gets.
TEST_CASE("unused prefetch") {
  constexpr double kSeconds = 0.3;
  LookupJob job(1, true, kSeconds);
  const int table = job.Make(2);
  Prefetch unused = Begin(job, 1, {{table, {1}, {}}});
  CHECK_OK(Wait(unused.begun));
  const auto start = std::chrono::steady_clock::now();
  Prefetch next = Begin(job, 1, {{table, {2}, {}}});
  CHECK_OK(Wait(next.begun));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::duration<double>(kSeconds));
  CHECK(job.Lookup(table, {2}, 2) == First({2}, 2));
  CHECK(job.client().tables().lookup_stats().prefetch_hits == 1);
}

// A pipeline that is one batch ahead of the steps, and does not wait for rows.
TEST_CASE("pipeline") {
  LookupJob job(2);
  const int table = job.Make(2);
  constexpr int kSteps = 60;
  std::thread pipeline([&] {
    for (int64_t i = 0; i < kSteps; ++i) {
      Prefetch prefetch = Begin(job, 1, {{table, {i, i + 1}, {}}});
      CHECK_OK(Wait(prefetch.begun));
    }
  });
  for (int64_t i = 0; i < kSteps; ++i) {
    while (job.client().tables().lookup_stats().prefetched < static_cast<uint64_t>(i + 1)) {
      std::this_thread::yield();
    }
    const Floats rows = job.Lookup(table, {i, i + 1}, 2);
    CHECK(rows == First({i, i + 1}, 2));
    job.Step(table, {i + kSteps + 2}, 2);
  }
  pipeline.join();
  CHECK(job.client().tables().lookup_stats().prefetch_hits == kSteps);
}

}  // namespace
}  // namespace tfdist::testing::ps_client_lookup_groups_test
