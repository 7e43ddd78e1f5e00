// An embedding table: rows are created, stepped, admitted and evicted by its configuration.
#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "core/ps/optimizers/row_steps.h"
#include "ps/tables.h"

namespace tfdist::testing::ps_table_table_test {
namespace {

using namespace tfdist::ps;

Floats ContentOf(Table& table, int64_t id) {
  SavedRows rows;
  uint64_t cursor = 0;
  while (table.ScanRows(100, &cursor, &rows)) {
  }
  const size_t floats = table.content_floats();
  for (size_t i = 0; i < rows.ids.size(); ++i) {
    if (rows.ids[i] != id) continue;
    const auto begin = rows.content.begin() + static_cast<int64_t>(i * floats);
    return {begin, begin + static_cast<int64_t>(floats)};
  }
  return {};
}

void Edit(Table& table, EditKind kind, const Ids& ids, const Floats& content, double now = 0) {
  TableEdit edit;
  edit.kind = kind;
  edit.now = now;
  edit.count = ids.size();
  edit.ids = ids.data();
  edit.content = content.data();
  table.Edit(edit);
}

TEST_CASE("lookup and sgd") {
  const auto table = Make(Constant(2, 5));
  CHECK(Lookup(*table, {3, -4}, /*training=*/false) == Floats({5, 5, 5, 5}));
  CHECK(table->stats().rows == 0);
  CHECK(Lookup(*table, {3, 9, 3}) == Floats(6, 5));
  CHECK((table->stats().rows == 2 && table->stats().created == 2));
  Apply(*table, {9, 3}, {1, 2, 3, 4});
  CHECK(Lookup(*table, {3, 9, 1}, false) == Floats({2, 1, 4, 3, 5, 5}));
  Apply(*table, {1}, {1, 1});  // was never looked up
  CHECK(Lookup(*table, {1}, false) == Floats({4, 4}));
  const TableStats stats = table->stats();
  CHECK((stats.lookups == 9 && stats.hits == 4 && stats.updates == 3 && stats.lost_updates == 0));
}

TEST_CASE("configurations") {
  std::unique_ptr<Table> table;
  TableConfig config;
  config.width = 0;
  CHECK_CONTAINS(Table::Create(config, &table).message(), "a width from 1 to 65536, received 0");
  config = {};
  config.probability = 1.5;
  CHECK_CONTAINS(Table::Create(config, &table).message(), "a probability above 0 and up to 1");
  config = {};
  config.ttl_seconds = -1;
  CHECK_CONTAINS(Table::Create(config, &table).message(), "ttl_seconds from 0 on, received -1");
  config = {};
  config.min_norm = std::nan("");
  CHECK_CONTAINS(Table::Create(config, &table).message(), "a min_norm from 0 on");
  config = {};
  config.weight_decay = -1;
  CHECK_CONTAINS(Table::Create(config, &table).message(), "a weight_decay from 0 on");
  config = {};
  config.min_count = 70000;
  CHECK_CONTAINS(Table::Create(config, &table).message(), "a min_count up to 65535");
}

OptimizerConfig Adam() {
  OptimizerConfig adam;
  adam.kind = OptimizerKind::kAdam;
  adam.beta_1 = 0.9;
  adam.beta_2 = 0.999;
  adam.epsilon = 1e-7;
  return adam;
}

// If all rows have a gradient in every step, the table equals a variable.
TEST_CASE("elementwise") {
  constexpr size_t kWidth = 3, kRows = 50;
  std::vector<OptimizerConfig> configs(4);
  configs[0].momentum = 0.9;
  configs[1].kind = OptimizerKind::kAdagrad;
  configs[1].epsilon = 1e-7;
  configs[2] = Adam();
  configs[3].kind = OptimizerKind::kFtrl;
  configs[3].learning_rate_power = -0.5;
  configs[3].l1_regularization_strength = 0.01;
  for (const OptimizerConfig& optimizer : configs) {
    TableConfig config = Constant(kWidth, 0.5);
    config.optimizer = optimizer;
    config.first_slots = {0.1, 0.1, 0.1};
    const auto table = Make(config);
    Ids ids(kRows);
    for (size_t i = 0; i < kRows; ++i) ids[i] = static_cast<int64_t>(i * i);
    Floats value(kWidth * kRows, 0.5f), gradient(value.size());
    std::vector<Floats> slots(SlotCount(optimizer), Floats(value.size(), 0.1f));
    std::mt19937 random(3);
    Lookup(*table, ids);
    for (int step = 1; step <= 5; ++step) {
      for (float& g : gradient) g = static_cast<float>(random() % 1000) / 500 - 1;
      StepRuns runs{gradient.data(), {value.data(), value.data()}, {}};
      for (size_t i = 0; i < slots.size(); ++i) runs.slots[i] = {slots[i].data(), slots[i].data()};
      Optimize(optimizer, {0.1, step}, 0, DType::kFloat32, value.size(), runs);
      Apply(*table, ids, gradient, {0.1, step});
    }
    const Floats rows = Lookup(*table, ids, false);
    for (size_t i = 0; i < rows.size(); ++i) CHECK(std::abs(rows[i] - value[i]) <= 1e-6f);
  }
}

// The table equals a dense variable of which most rows have no gradient in most steps.
TEST_CASE("exact adam") {
  constexpr size_t kRows = 20;
  TableConfig config = Constant(1, 0.5);
  config.rule = RowRule::kExactAdam;
  config.optimizer = Adam();
  const auto table = Make(config);
  Ids all(kRows);
  for (size_t i = 0; i < kRows; ++i) all[i] = static_cast<int64_t>(i);
  Floats value(kRows, 0.5f), momentum(kRows, 0), velocity(kRows, 0);
  std::mt19937 random(5);
  Lookup(*table, all);
  for (int step = 1; step <= 400; ++step) {
    Floats gradient(kRows, 0);
    Ids ids;
    Floats sparse;
    for (size_t i = 0; i < kRows; ++i) {
      if (random() % 10 != 0) continue;
      gradient[i] = static_cast<float>(random() % 1000) / 500 - 1;
      ids.push_back(static_cast<int64_t>(i));
      sparse.push_back(gradient[i]);
    }
    StepRuns runs{gradient.data(), {value.data(), value.data()}, {}};
    runs.slots[0] = {momentum.data(), momentum.data()};
    runs.slots[1] = {velocity.data(), velocity.data()};
    Optimize(config.optimizer, {0.001, step}, 0, DType::kFloat32, kRows, runs);
    Lookup(*table, ids);
    Apply(*table, ids, sparse, {0.001, step});
  }
  const Floats rows = Lookup(*table, all, false);
  for (size_t i = 0; i < kRows; ++i) CHECK(std::abs(rows[i] - value[i]) <= 2e-6f);
}

TEST_CASE("row rules") {
  TableConfig config = Constant(2, 0);
  config.rule = RowRule::kRowwiseAdagrad;
  config.first_slots = {0.5};
  auto table = Make(config);
  CHECK(table->content_floats() == 3);
  Lookup(*table, {1});
  Apply(*table, {1}, {3, 4});
  const float scale = 1 / std::sqrt(0.5f + 12.5f);
  const Floats row = Lookup(*table, {1}, false);
  CHECK((std::abs(row[0] + 3 * scale) < 1e-6f && std::abs(row[1] + 4 * scale) < 1e-6f));

  config = Constant(2, 0);
  config.rule = RowRule::kGroupFtrl;
  config.first_slots = {0.1, 0};
  config.group_penalty = 4 / std::sqrt(2.0);
  table = Make(config);
  Lookup(*table, {1, 2});
  Apply(*table, {1, 2}, {3, 2, 6, 8});
  const Floats rows = Lookup(*table, {1, 2}, false);
  // The first is shorter than the penalty; the second keeps 1 - 4 / 10 of its length.
  CHECK((rows[0] == 0 && rows[1] == 0));
  CHECK(std::abs(rows[2] + 0.6f * 6 / std::sqrt(36.1f)) < 1e-6f);
  CHECK(std::abs(rows[3] + 0.6f * 8 / std::sqrt(64.1f)) < 1e-6f);
}

// Adafactor and Lamb treat each row as a vector.
TEST_CASE("rows as vectors") {
  TableConfig config = Constant(2, 0.5);
  config.rule = RowRule::kAdafactor;
  config.optimizer.beta_2_decay = -0.8;
  config.optimizer.epsilon_1 = 1e-30;
  config.optimizer.epsilon_2 = 1e-3;
  config.optimizer.clip_threshold = 1;
  config.weight_decay = 0.5;
  auto table = Make(config);
  CHECK(table->content_floats() == 4);
  Lookup(*table, {1, 2});
  Apply(*table, {1, 2}, {3, -4, 0.03f, -0.04f}, {0.25, 1});
  // In the first step the second moment is the squared gradient, and the update is the gradient's
  // sign, for both rows. The value 0.5 decays to 0.4375, which scales the rate.
  const float step = 0.25f * 0.4375f;
  for (const int64_t id : {1, 2}) {
    const Floats row = Lookup(*table, {id}, false);
    CHECK(std::abs(row[0] - (0.4375f - step)) < 1e-6f);
    CHECK(std::abs(row[1] - (0.4375f + step)) < 1e-6f);
  }
  // A row's first gradient after many steps: the update would be 40 times as large, and is clipped.
  config.weight_decay = 0;
  table = Make(config);
  Lookup(*table, {1});
  Apply(*table, {1}, {2, 2}, {0.01, 10000});
  const Floats clipped = Lookup(*table, {1}, false);
  CHECK((std::abs(clipped[0] - (0.5f - 0.5f * 0.01f)) < 1e-6f && clipped[0] == clipped[1]));

  config = Constant(2, 0.5);
  config.rule = RowRule::kLamb;
  config.optimizer = Adam();
  table = Make(config);
  CHECK(table->content_floats() == 6);
  Lookup(*table, {1});
  Apply(*table, {1}, {3, -0.004f}, {0.25, 1});
  // Adam's first update is the gradient's sign; the norm of the row is sqrt(2) / 2.
  const Floats row = Lookup(*table, {1}, false);
  CHECK((std::abs(row[0] - 0.375f) < 1e-5f && std::abs(row[1] - 0.625f) < 1e-5f));
  // For a row of zeros and for a gradient of zeros the trust ratio is 1.
  Edit(*table, EditKind::kReplace, {1, 2}, {0, 0, 0.5f, 0.5f});
  Apply(*table, {1, 2}, {1, 1, 0, 0}, {0.25, 1});
  CHECK((std::abs(ValueOf(*table, 1) + 0.25f) < 1e-5f && ValueOf(*table, 2) == 0.5f));
}

TEST_CASE("admission") {
  TableConfig config = Constant(1, 2);
  config.min_count = 3;
  auto table = Make(config);
  for (int i = 0; i < 2; ++i) CHECK(Lookup(*table, {1}) == Floats({2}));
  Lookup(*table, {1}, false);  // does not count as seen
  Apply(*table, {1}, {1});
  CHECK((table->stats().rows == 0 && table->stats().lost_updates == 1));
  CHECK(Lookup(*table, {1, 5}) == Floats({2, 2}));
  CHECK(table->stats().rows == 1);
  Apply(*table, {1, 5}, {1, 1});
  CHECK(Lookup(*table, {1, 5}, false) == Floats({1, 2}));

  config = Constant(1, 2);
  config.probability = 0.25;
  table = Make(config);
  Ids ids(10000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  Lookup(*table, ids);
  CHECK((table->stats().rows > 2200 && table->stats().rows < 2800));
}

TEST_CASE("room") {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    TableConfig config = Constant(1, 0);
    config.max_rows = 1600;
    config.policy = policy;
    const auto table = Make(config);
    // A hundred ids are in use all the time; thousands of others occur once.
    Ids hot(100);
    for (size_t i = 0; i < hot.size(); ++i) hot[i] = static_cast<int64_t>(i);
    Apply(*table, hot, Floats(hot.size(), -1));
    int64_t next = 1000;
    for (int round = 1; round <= 200; ++round) {
      Lookup(*table, hot, true, round);
      Ids cold(50);
      for (int64_t& id : cold) id = next++;
      Lookup(*table, cold, true, round + 0.5);
    }
    const TableStats stats = table->stats();
    CHECK(stats.rows == 1600);
    CHECK(stats.created - stats.evicted_for_room == stats.rows);
    const Floats rows = Lookup(*table, hot, false);
    CHECK(std::count(rows.begin(), rows.end(), 1.0f) >= 98);
  }
}

// A table of a few rows keeps its limit, and the rows that are used most.
TEST_CASE("small tables") {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    TableConfig config = Constant(1, 0);
    config.max_rows = 10;
    config.policy = policy;
    const auto table = Make(config);
    const Ids hot = {1, 2, 3, 4, 5};
    for (int64_t id = 0; id < 50; ++id) {
      Lookup(*table, hot, true, 2 * id + 1);
      Lookup(*table, {1000 + id}, true, 2 * id + 2);
      CHECK(table->row_count() <= 10);
    }
    const TableStats before = table->stats();
    Lookup(*table, hot, false);
    CHECK(table->stats().hits - before.hits == hot.size());
  }
}

// Ids hash to stripes unevenly: nothing is evicted while the whole table is within its limit, and
// it exceeds the limit by at most one row per stripe.
TEST_CASE("bound") {
  constexpr uint64_t kStripes = 16;
  for (const uint64_t max_rows : {1, 10, 16, 100, 1000}) {
    TableConfig config = Constant(1, 0);
    config.max_rows = max_rows;
    const auto table = Make(config);
    int64_t id = 0;
    for (; id < static_cast<int64_t>(max_rows); ++id) Lookup(*table, {id * 7919}, true, 1);
    CHECK((table->stats().rows == max_rows && table->stats().evicted_for_room == 0));
    // One at a time, and many at once.
    for (; id < static_cast<int64_t>(2 * max_rows); ++id) Lookup(*table, {id * 7919}, true, 2);
    Ids many(3 * max_rows + 50);
    for (int64_t& each : many) each = id++ * 7919;
    Lookup(*table, many, true, 3);
    const TableStats stats = table->stats();
    CHECK((stats.rows >= max_rows && stats.rows < max_rows + kStripes));
    CHECK(stats.created - stats.evicted_for_room == stats.rows);
    CHECK(table->row_count() == stats.rows);
  }
}

// Several threads fill a table: the limit holds for any order of their insertions.
TEST_CASE("bound of threads") {
  TableConfig config = Constant(4, 0);
  config.max_rows = 500;
  const auto table = Make(config);
  const auto fill = [&](int64_t first) {
    for (int64_t i = 0; i < 2000; ++i) Lookup(*table, {first + i}, true, 1);
  };
  std::thread other(fill, 1 << 20);
  fill(0);
  other.join();
  CHECK((table->stats().rows >= 500 && table->stats().rows < 516));
  CHECK(table->row_count() == table->stats().rows);
}

// A restored table may exceed its limit: the rows of two servers are twice as many.
TEST_CASE("bound of restored rows") {
  TableConfig config = Constant(1, 0);
  config.max_rows = 100;
  const auto table = Make(config);
  Ids ids(400);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  CHECK_OK(table->ImportRows(table->NewRows(1, ids.data(), ids.size(), Floats(400, 1).data())));
  CHECK(table->row_count() == 400);
  table->EvictExcess();
  CHECK((table->row_count() == 100 && table->stats().rows == 100));
}

TEST_CASE("edits") {
  TableConfig config = Constant(1, 5);
  config.optimizer.kind = OptimizerKind::kAdagrad;
  config.first_slots = {0.5};
  config.ttl_seconds = 10;
  const auto table = Make(config);
  Lookup(*table, {1, 2, 3}, true, 1);
  Apply(*table, {1}, {2});
  CHECK(ContentOf(*table, 1)[1] == 4.5f);
  // An existing row keeps its slot; a new row gets a first slot.
  Edit(*table, EditKind::kUpsert, {1, 7, 7}, {8, 3, 9}, 9);
  CHECK(ContentOf(*table, 1) == Floats({8, 4.5f}));
  CHECK(ContentOf(*table, 7) == Floats({9, 0.5f}));
  Edit(*table, EditKind::kReplace, {1}, {6}, 9);
  CHECK(ContentOf(*table, 1) == Floats({6, 0.5f}));
  table->Sweep(12);  // edited rows count as used at the time of the edit
  CHECK(table->row_count() == 2);

  Ids ids = {7, 2, 1};
  std::vector<uint8_t> found(3);
  Floats rows(3);
  const TableStats before = table->stats();
  table->Find(*table->Prepare(ids.data(), 3, Table::OnMissing::kIgnore, false), found.data(),
              rows.data());
  CHECK((found == (std::vector<uint8_t>{1, 0, 1}) && rows == Floats({9, 5, 6})));
  CHECK((table->row_count() == 2 && table->stats().lookups == before.lookups));

  Edit(*table, EditKind::kRemove, {1, 2, 99}, {});
  CHECK((table->row_count() == 1 && ContentOf(*table, 1).empty()));
  Edit(*table, EditKind::kClear, {}, {});
  CHECK((table->row_count() == 0 && table->stats().rows == 0));
  Lookup(*table, {7});
  CHECK(ContentOf(*table, 7) == Floats({5, 0.5f}));

  // Edits keep the limit too.
  config.max_rows = 20;
  const auto few = Make(config);
  Ids many(200);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int64_t>(i);
  Edit(*few, EditKind::kUpsert, many, Floats(200, 1));
  CHECK((few->row_count() >= 20 && few->row_count() < 36));
  Edit(*few, EditKind::kReplace, many, Floats(200, 1));
  CHECK((few->row_count() >= 20 && few->row_count() < 36));
}

// The slots of a row that is written catch up with the present step first.
TEST_CASE("upsert of exact adam") {
  TableConfig config = Constant(1, 0.5);
  config.rule = RowRule::kExactAdam;
  config.optimizer = Adam();
  const auto table = Make(config), other = Make(config);
  for (Table* each : {table.get(), other.get()}) {
    Lookup(*each, {1, 2});
    Apply(*each, {1, 2}, {1, 1}, {0.1, 1});
    for (int step = 2; step < 9; ++step) Apply(*each, {2}, {1}, {0.1, step});
  }
  Lookup(*other, {1});
  Edit(*table, EditKind::kUpsert, {1}, {3});
  Edit(*other, EditKind::kUpsert, {1}, {3});
  CHECK((ContentOf(*table, 1) == ContentOf(*other, 1) && ContentOf(*table, 1)[0] == 3));
}

// Files get rows that have caught up: their reader does not know of the steps.
TEST_CASE("scan of exact adam") {
  TableConfig config = Constant(1, 0.5);
  config.rule = RowRule::kExactAdam;
  config.optimizer = Adam();
  const auto table = Make(config);
  Lookup(*table, {1, 2});
  Apply(*table, {1, 2}, {1, 1}, {0.1, 1});
  const float before = ContentOf(*table, 1)[0];
  Apply(*table, {}, {}, {0.1, 2});  // of rows on other servers
  const float after = ContentOf(*table, 1)[0];
  CHECK(after < before);
  CHECK(Lookup(*table, {1}, false) == Floats({after}));
}

TEST_CASE("sweep") {
  TableConfig config = Constant(2, 3);
  config.ttl_seconds = 10;
  config.min_norm = 1;
  const auto table = Make(config);
  Lookup(*table, {1, 2}, true, 100);
  Lookup(*table, {3, 4}, true, 105);
  Apply(*table, {4}, {2.5, 2.5});
  table->Sweep(111);
  CHECK(table->stats().rows == 1);
  CHECK((table->stats().evicted_by_age == 2 && table->stats().evicted_by_norm == 1));
  CHECK(Lookup(*table, {3, 4}, false) == Floats({3, 3, 3, 3}));
  table->Sweep(114);
  CHECK(table->stats().rows == 1);
}

}  // namespace
}  // namespace tfdist::testing::ps_table_table_test
