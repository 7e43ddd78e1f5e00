// Snapshots of an embedding table: of one moment, full or incremental, and imported again.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "ps/tables.h"

namespace tfdist::testing::ps_table_table_snapshot_test {
namespace {

using namespace tfdist::ps;

std::map<int64_t, Floats> AsMap(const SavedRows& rows, size_t floats) {
  std::map<int64_t, Floats> all;
  CHECK(rows.content.size() == rows.ids.size() * floats);
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    const auto begin = rows.content.begin() + static_cast<int64_t>(i * floats);
    CHECK(all.emplace(rows.ids[i], Floats(begin, begin + floats)).second);  // once
  }
  return all;
}

SavedRows Save(Table& table, bool changed_only) {
  SavedRows rows;
  table.BeginSnapshot(changed_only);
  while (table.NextSnapshotRows(7, &rows)) {
  }
  return rows;
}

TEST_CASE("save and restore") {
  TableConfig config = Constant(2, 1);
  config.optimizer.kind = OptimizerKind::kAdagrad;
  config.first_slots = {0.1};
  const auto table = Make(config);
  Ids ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7);
  Lookup(*table, ids);
  Apply(*table, ids, Floats(2000, 0.5f));
  const SavedRows full = Save(*table, false);
  CHECK((full.ids.size() == 1000 && full.removed.empty()));
  CHECK(Save(*table, true).ids.empty());
  Apply(*table, {7, 14}, {1, 1, 1, 1});
  Lookup(*table, {3});
  const SavedRows some = Save(*table, true);
  Ids saved = some.ids;
  std::sort(saved.begin(), saved.end());
  CHECK(saved == Ids({3, 7, 14}));
  const auto copy = Make(config);
  CHECK_OK(copy->ImportRows(full));
  CHECK_OK(copy->ImportRows(some));
  ids.push_back(3);
  CHECK(Lookup(*copy, ids, false) == Lookup(*table, ids, false));
  CHECK(AsMap(Save(*copy, false), 4) == AsMap(Save(*table, false), 4));
  SavedRows wrong = full;
  wrong.content.pop_back();
  CHECK_CONTAINS(copy->ImportRows(wrong).message(), "expected 4 numbers for each of 1000");
}

// An incremental snapshot has the removals since the previous snapshot.
TEST_CASE("removed rows") {
  TableConfig config = Constant(1, 5);
  config.min_norm = 1;
  const auto table = Make(config), copy = Make(config);
  Lookup(*table, {1, 2, 3});
  CHECK_OK(copy->ImportRows(Save(*table, false)));
  Apply(*table, {1, 2}, {5, 5});
  table->Sweep(0);
  Lookup(*table, {2});  // is created again
  const SavedRows some = Save(*table, true);
  CHECK(some.ids == Ids({2}));
  CHECK_OK(copy->ImportRows(some));
  CHECK(AsMap(Save(*copy, false), 1) == AsMap(Save(*table, false), 1));
  CHECK(copy->stats().rows == 2);
}

// A snapshot is of the moment at which it was begun, though rows change while it is copied.
TEST_CASE("save while it changes") {
  TableConfig config = Constant(1, 0);
  config.min_norm = 0.5;
  const auto table = Make(config);
  Ids ids(5000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  std::mt19937 random(9);
  Apply(*table, ids, Floats(ids.size(), -1));
  for (int round = 0; round < 20; ++round) {
    SavedRows rows;
    table->BeginSnapshot(false);
    const Floats then = Lookup(*table, ids, false);
    const uint64_t count = table->stats().rows;
    bool more = true;
    while (more) {
      more = table->NextSnapshotRows(100, &rows);
      Ids some;
      for (int i = 0; i < 50; ++i) some.push_back(static_cast<int64_t>(random() % 6000));
      std::sort(some.begin(), some.end());
      some.erase(std::unique(some.begin(), some.end()), some.end());
      Floats gradients(some.size());
      for (float& g : gradients) g = random() % 4 == 0 ? 1.0f : -1.0f;
      Apply(*table, some, gradients);
      if (random() % 8 == 0) table->Sweep(0);
    }
    const auto saved = AsMap(rows, 1);
    CHECK(saved.size() == count);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = saved.find(ids[i]);
      CHECK((found == saved.end() ? 0.0f : found->second[0]) == then[i]);
    }
  }
}

// Many threads, overlapping ids, and concurrent snapshots: every gradient counts once.
TEST_CASE("threads") {
  const auto table = Make(Constant(4, 0));
  std::atomic<bool> done{false};
  std::thread saver([&] {
    while (!done) Save(*table, true);
  });
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, 300> counts{};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(thread);
      for (int round = 0; round < 300; ++round) {
        Ids ids;
        for (int64_t id = 0; id < 300; ++id) {
          if (random() % 5 == 0) ids.push_back(id);
        }
        Lookup(*table, ids);
        Apply(*table, ids, Floats(4 * ids.size(), -1));
        for (const int64_t id : ids) ++counts[id];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  saver.join();
  for (int64_t id = 0; id < 300; ++id) {
    CHECK(Lookup(*table, {id}, false) == Floats(4, static_cast<float>(counts[id])));
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_table_table_snapshot_test
