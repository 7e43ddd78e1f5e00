// What becomes of lookups on the worker: rows of equal ids once, groups, prefetches, caches, and
// what rows travel as.
#include <set>
#include <thread>

#include "ps_worker.h"

namespace tfdist::testing {
namespace {

using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

ps::TableConfig Random(uint32_t width) {
  ps::TableConfig config;
  config.width = width;
  config.initializer = {ps::InitializerKind::kUniform, -1, 1, width};
  return config;
}

// A worker and its servers, whose tables are steps of SGD away from their first rows.
struct Job {
  explicit Job(int count, bool lend = true) : worker(0, 1, count, kPatience, 0, lend) {
    for (int i = 0; i < count; ++i) {
      servers.push_back(StartServer(AsyncJob(1)));
      worker.Connect(*servers.back(), i);
    }
  }
  int Make(uint32_t width) {
    const int table = client().AddTable(StrCat("table ", tables++), Random(width));
    EXPECT_OK(Call([&](ps::Done done) { client().CreateTable(table, done); }));
    return table;
  }
  ps::Client& client() { return worker.client(); }
  ps::Lookups& lookups() { return worker.client().lookups(); }

  Floats Look(int table, const Ids& ids, size_t width, bool training = true,
              DType wire = DType::kFloat32) {
    const ps::Memory rows = Hold(Floats(ids.size() * width, -7));
    EXPECT_OK(
        Call([&](ps::Done done) { client().Lookup({{table, ids, rows, wire}}, training, done); }));
    return Values(rows, ids.size() * width);
  }
  static Floats Values(const ps::Memory& rows, size_t count) {
    const auto* values = reinterpret_cast<const float*>(rows.data);
    return Floats(values, values + count);
  }
  // All elements of these rows become larger by one.
  void Step(int table, const Ids& ids, size_t width) {
    client().StageRows({1, 1}, {table, ids, Hold(Floats(ids.size() * width, -1))});
    EXPECT_OK(worker.PushStaged());
    EXPECT_OK(client().Flush(kPatience));
  }

  std::vector<std::unique_ptr<ps::Server>> servers;
  Worker worker;
  int tables = 0;
};

// As after so many steps.
Floats First(const Ids& ids, uint32_t width, int steps = 0) {
  Floats rows(ids.size() * width);
  for (size_t i = 0; i < ids.size(); ++i) {
    Random(width).initializer.Fill(ids[i], width, rows.data() + i * width);
  }
  for (int i = 0; i < steps; ++i) {
    for (float& each : rows) each += 1;
  }
  return rows;
}

// Long runs without a repeated id, which are received in place, and short ones.
void TestEqualIds(int servers, bool lend) {
  Job job(servers, lend);
  const int table = job.Make(40);
  Ids ids;
  for (int64_t i = 0; i < 1500; ++i) ids.push_back(i % 700 == 699 ? 5 : i * 1000003);
  Ids many;
  for (int64_t i = 0; i < 900; ++i) many.push_back(i * i % 101);
  const ps::Memory rows = Hold(Floats(1500 * 40, -7)), more = Hold(Floats(900 * 40, -7));
  EXPECT_OK(Call([&](ps::Done done) {
    job.client().Lookup({{table, ids, rows}, {table, many, more}}, true, done);
  }));
  EXPECT(Job::Values(rows, 1500 * 40) == First(ids, 40));
  EXPECT(Job::Values(more, 900 * 40) == First(many, 40));
  const ps::LookupStats stats = job.client().lookup_stats();
  const std::set<int64_t> all = [&] {
    std::set<int64_t> set(ids.begin(), ids.end());
    set.insert(many.begin(), many.end());
    return set;
  }();
  EXPECT(stats.lookups == 1 && stats.ids == 2400 && stats.rows == all.size());
  EXPECT(stats.bytes == all.size() * 40 * sizeof(float));
  EXPECT(job.Look(table, many, 40) == First(many, 40));
}

void TestGradientsOfEqualIds(int servers, bool lend) {
  Job job(servers, lend);
  const int table = job.Make(40);
  Ids ids;
  Floats gradients;
  std::map<int64_t, float> sums;
  for (int64_t i = 0; i < 1500; ++i) {
    ids.push_back(i % 700 == 699 ? 5 : i * 1000003);
    sums[ids.back()] += static_cast<float>(i);
    gradients.insert(gradients.end(), 40, static_cast<float>(i));
  }
  job.client().StageRows({1, 1}, {table, ids, Hold(gradients)});
  job.client().StageRows({1, 1}, {table, {ids[3]}, Hold(Floats(40, 0.5f))});
  sums[ids[3]] += 0.5f;
  EXPECT_OK(job.worker.PushStaged());
  const Floats first = First(ids, 40), rows = job.Look(table, ids, 40);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT(rows[i] == first[i] - sums[ids[i / 40]]);
}

void TestShortFloats() {
  Job job(2);
  const int table = job.Make(7);
  const Ids ids = {1, 2, 3, 2};
  for (const DType wire : {DType::kFloat16, DType::kBFloat16}) {
    const auto rounded = [wire](Floats values) {
      std::vector<uint16_t> narrow(values.size());
      Narrow(wire, values.data(), narrow.data(), values.size());
      Widen(wire, narrow.data(), values.data(), values.size());
      return values;
    };
    const Floats exact = job.Look(table, ids, 7), rows = job.Look(table, ids, 7, true, wire);
    EXPECT(rows == rounded(exact));
    EXPECT(rows != exact);
    const Floats gradients = First({11, 12, 13}, 7);
    job.client().StageRows({1, 1}, {table, {1, 2, 3}, Hold(gradients), wire});
    EXPECT_OK(job.worker.PushStaged());
    const Floats sent = rounded(gradients), after = job.Look(table, {1, 2, 3}, 7);
    for (size_t i = 0; i < after.size(); ++i) EXPECT(after[i] == exact[i] - sent[i]);
  }
  // To nearest even, and what no float16 can hold.
  const Floats odd = {1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 70000.0f, -0.0f};
  uint16_t half[4], brain[4];
  Narrow(DType::kFloat16, odd.data(), half, 4);
  Narrow(DType::kBFloat16, odd.data(), brain, 4);
  EXPECT(half[0] == 0x3c00 && half[1] == 0x3c02 && half[2] == 0x7c00 && half[3] == 0x8000);
  EXPECT(brain[0] == 0x3f80 && brain[2] == 0x4789 && brain[3] == 0x8000);
}

void TestCache() {
  Job job(2);
  const int table = job.Make(3);
  EXPECT_OK(job.lookups().SetCache(table, 3, 2));
  EXPECT_STATUS(job.lookups().SetCache(99, 3, 2), StatusCode::kInvalidArgument);
  const Ids ids = {1, 2, 1, 3};
  job.Look(table, ids, 3);
  for (int step = 0; step < 3; ++step) {
    EXPECT(job.Look(table, ids, 3) == First(ids, 3));
    EXPECT(job.Look(table, ids, 3, false) == First(ids, 3, step));
    job.Step(table, {1, 2, 3}, 3);
  }
  EXPECT(job.Look(table, ids, 3) == First(ids, 3, 3));
  const ps::LookupStats stats = job.client().lookup_stats();
  EXPECT(stats.cache_lookups == 15 && stats.cache_hits == 9);
  // Of more rows than there is room for, the ones that are used often stay.
  const int large = job.Make(2);
  EXPECT_OK(job.lookups().SetCache(large, 64, 2));
  for (int i = 0; i < 20; ++i) job.Look(large, {1, 2}, 2);
  for (int64_t i = 100; i < 400; ++i) EXPECT(job.Look(large, {i}, 2) == First({i}, 2));
  const uint64_t hits = job.client().lookup_stats().cache_hits;
  job.Look(large, {1, 2}, 2);
  EXPECT(job.client().lookup_stats().cache_hits == hits + 2);
  EXPECT_OK(job.lookups().SetCache(table, 0, 0));
  EXPECT(job.Look(table, {1}, 3) == First({1}, 3, 3));
  EXPECT(job.client().lookup_stats().cache_hits == hits + 2);
}

struct Asked {
  ps::Memory rows;
  ps::LookupGroups::MemberPtr member = std::make_shared<ps::LookupGroups::Member>();
  Ending ending;
};

Asked Ask(Job& job, const ps::GroupKey& key, int table, int64_t id, Asked asked = {}) {
  asked.rows = Hold(Floats(2, -7));
  asked.ending = Start([&](ps::Done done) {
    job.lookups().LookTogether(key, asked.member, {{table, {id}, asked.rows}}, true, done);
  });
  return asked;
}

bool Waits(Ending& ending) {
  return ending.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
}

void TestGroups() {
  Job job(2);
  const int table = job.Make(2);
  job.lookups().groups().SetSize(1, 0, 3);
  const ps::GroupKey one{1, 0, 10, 0, 0}, other{1, 0, 11, 0, 0};
  Asked a = Ask(job, one, table, 1), b = Ask(job, other, table, 2), c = Ask(job, one, table, 3);
  EXPECT(Waits(a.ending) && Waits(b.ending) && Waits(c.ending));
  Asked last = Ask(job, one, table, 4);
  for (Asked* each : {&a, &c, &last}) EXPECT_OK(Wait(each->ending));
  EXPECT(Job::Values(c.rows, 2) == First({3}, 2));
  EXPECT(job.client().lookup_stats().lookups == 1);
  // One that is cancelled ends, before it is added too; the others' step fails as well.
  job.lookups().groups().Cancel(b.member);
  EXPECT_STATUS(Wait(b.ending), StatusCode::kCancelled);
  job.lookups().groups().Cancel(b.member);
  Asked early;
  job.lookups().groups().Cancel(early.member);
  early = Ask(job, other, table, 2, std::move(early));
  EXPECT_STATUS(Wait(early.ending), StatusCode::kCancelled);
  // A group of unknown size does not wait, nor one for a table that is not there.
  Asked alone = Ask(job, {2, 0, 10, 0, 0}, table, 5);
  EXPECT_OK(Wait(alone.ending));
  Asked unknown = Ask(job, one, 77, 5);
  EXPECT_STATUS(Wait(unknown.ending), StatusCode::kInvalidArgument);
  Asked open = Ask(job, one, table, 5);
  job.client().Close();
  EXPECT_STATUS(Wait(open.ending), StatusCode::kCancelled);
  Asked late = Ask(job, one, table, 5);
  EXPECT_STATUS(Wait(late.ending), StatusCode::kCancelled);
}

// Executions of a group at once, of which some are cancelled.
void TestGroupsAtOnce() {
  Job job(2);
  const int table = job.Make(2);
  job.lookups().groups().SetSize(1, 0, 2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int step = 0; step < 50; ++step) {
        const ps::GroupKey key{1, 0, thread * 1000 + step, 0, 0};
        Asked a = Ask(job, key, table, step);
        std::thread canceller;
        if (step % 5 == 0) {
          canceller = std::thread([&] { job.lookups().groups().Cancel(a.member); });
        }
        Asked b = Ask(job, key, table, step + 1);
        if (canceller.joinable()) canceller.join();
        const Status status = Wait(a.ending);
        if (status.ok()) {
          EXPECT_OK(Wait(b.ending));
          EXPECT(Job::Values(a.rows, 2) == First({step}, 2));
        } else {
          EXPECT_STATUS(status, StatusCode::kCancelled);
          job.lookups().groups().Cancel(b.member);
          EXPECT_STATUS(Wait(b.ending), StatusCode::kCancelled);
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

Prefetch Begin(Job& job, uint64_t owner, std::vector<ps::TableLookup> lookups) {
  Status status;
  Prefetch prefetch;
  prefetch.batch = job.lookups().MakePrefetch(owner, std::move(lookups), true, &status);
  EXPECT_OK(status);
  prefetch.begun =
      Start([&](ps::Done done) { job.lookups().prefetches().Begin(prefetch.batch, done); });
  return prefetch;
}

void TestPrefetch() {
  Job job(2);
  const int table = job.Make(2), other = job.Make(3);
  const auto hits = [&] { return job.client().lookup_stats().prefetch_hits; };
  Prefetch first = Begin(job, 1, {{table, {1, 2, 1}, {}}, {table, {3}, {}}, {other, {4}, {}}});
  EXPECT_OK(Wait(first.begun));
  // The next one of the same owner waits, one of another table does not.
  Prefetch second = Begin(job, 1, {{table, {5}, {}}});
  EXPECT(Waits(second.begun));
  job.Step(table, {1, 2, 3}, 2);
  EXPECT(job.Look(table, {3}, 2) == First({3}, 2));
  EXPECT(job.Look(table, {1, 2}, 2) == First({1, 2}, 2, 1));  // others' ids
  EXPECT(job.Look(table, {1, 2, 1}, 2, false) == First({1, 2, 1}, 2, 1));
  EXPECT(job.Look(table, {1, 2, 1}, 2) == First({1, 2, 1}, 2));
  EXPECT(Waits(second.begun));
  EXPECT(job.Look(other, {4}, 3) == First({4}, 3));
  EXPECT_OK(Wait(second.begun));
  EXPECT(hits() == 3);
  // What is not used for two steps is forgotten.
  Prefetch third = Begin(job, 1, {{table, {6}, {}}});
  job.Step(table, {5, 6}, 2);
  EXPECT(Waits(third.begun));
  job.Step(table, {5, 6}, 2);
  EXPECT_OK(Wait(third.begun));
  EXPECT(job.Look(table, {5}, 2) == First({5}, 2, 2));
  EXPECT(hits() == 3);
  // A later owner's takes its place; the former owner's does not.
  Prefetch fourth = Begin(job, 2, {{table, {7}, {}}});
  EXPECT_OK(Wait(fourth.begun));
  EXPECT(job.Look(table, {6}, 2) == First({6}, 2, 2));
  EXPECT(hits() == 3);
  Prefetch former = Begin(job, 1, {{table, {7}, {}}});
  EXPECT_OK(Wait(former.begun));
  Prefetch cancelled = Begin(job, 2, {{table, {8}, {}}});
  EXPECT(Waits(cancelled.begun));
  job.lookups().prefetches().Cancel(cancelled.batch);
  EXPECT_STATUS(Wait(cancelled.begun), StatusCode::kCancelled);
  EXPECT(job.Look(table, {7}, 2) == First({7}, 2));
  EXPECT(hits() == 4);
  Status status;
  EXPECT(job.lookups().MakePrefetch(1, {{77, {1}, {}}}, true, &status) == nullptr);
  EXPECT_STATUS(status, StatusCode::kInvalidArgument);
  Prefetch kept = Begin(job, 2, {{table, {9}, {}}}), open = Begin(job, 2, {{table, {9}, {}}});
  EXPECT_OK(Wait(kept.begun));
  job.client().Close();
  EXPECT_STATUS(Wait(open.begun), StatusCode::kCancelled);
}

// A pipeline that runs one batch ahead of the steps, and does not wait for rows.
void TestPipeline() {
  Job job(2);
  const int table = job.Make(2);
  constexpr int kSteps = 60;
  std::thread pipeline([&] {
    for (int64_t i = 0; i < kSteps; ++i) {
      Prefetch prefetch = Begin(job, 1, {{table, {i, i + 1}, {}}});
      EXPECT_OK(Wait(prefetch.begun));
    }
  });
  for (int64_t i = 0; i < kSteps; ++i) {
    while (job.client().lookup_stats().prefetched < static_cast<uint64_t>(i + 1)) {
      std::this_thread::yield();
    }
    const Floats rows = job.Look(table, {i, i + 1}, 2);
    EXPECT(rows == First({i, i + 1}, 2));
    job.Step(table, {i + kSteps + 2}, 2);
  }
  pipeline.join();
  EXPECT(job.client().lookup_stats().prefetch_hits == kSteps);
}

void Main() {
  for (const bool lend : {false, true}) {
    for (const int servers : {1, 3}) {
      TestEqualIds(servers, lend);
      TestGradientsOfEqualIds(servers, lend);
    }
  }
  TestShortFloats();
  TestCache();
  TestGroups();
  TestGroupsAtOnce();
  TestPrefetch();
  TestPipeline();
  std::puts("ps lookups: ok");
}

}  // namespace
}  // namespace tfdist::testing

int main() { tfdist::testing::Main(); }
