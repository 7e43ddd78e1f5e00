// An embedding's table: rows made, stepped, admitted and evicted as its configuration says.
#include <algorithm>
#include <cmath>
#include <random>

#include "core/ps/row_steps.h"
#include "ps_tables.h"

namespace tfdist::testing::ps_table_test {
namespace {

using namespace tfdist::ps;

void TestLookupAndSgd() {
  const auto table = Make(Constant(2, 5));
  EXPECT(Look(*table, {3, -4}, /*training=*/false) == Floats({5, 5, 5, 5}));
  EXPECT(table->stats().rows == 0);
  EXPECT(Look(*table, {3, 9, 3}) == Floats(6, 5));
  EXPECT(table->stats().rows == 2 && table->stats().created == 2);
  Apply(*table, {9, 3}, {1, 2, 3, 4});
  EXPECT(Look(*table, {3, 9, 1}, false) == Floats({2, 1, 4, 3, 5, 5}));
  Apply(*table, {1}, {1, 1});  // was never looked up
  EXPECT(Look(*table, {1}, false) == Floats({4, 4}));
  const TableStats stats = table->stats();
  EXPECT(stats.lookups == 9 && stats.hits == 4 && stats.updates == 3 && stats.lost_updates == 0);
}

void TestConfigurations() {
  std::unique_ptr<Table> table;
  TableConfig config;
  config.width = 0;
  EXPECT_CONTAINS(Table::Create(config, &table).message(), "a width from 1 to 65536, received 0");
  config = {};
  config.probability = 1.5;
  EXPECT_CONTAINS(Table::Create(config, &table).message(), "a probability above 0 and up to 1");
  config = {};
  config.ttl_seconds = -1;
  EXPECT_CONTAINS(Table::Create(config, &table).message(), "ttl_seconds from 0 on, received -1");
  config = {};
  config.min_norm = std::nan("");
  EXPECT_CONTAINS(Table::Create(config, &table).message(), "a min_norm from 0 on");
  config = {};
  config.min_count = 70000;
  EXPECT_CONTAINS(Table::Create(config, &table).message(), "a min_count up to 65535");
}

OptimizerConfig Adam() {
  OptimizerConfig adam;
  adam.kind = OptimizerKind::kAdam;
  adam.beta_1 = 0.9;
  adam.beta_2 = 0.999;
  adam.epsilon = 1e-7;
  return adam;
}

// Rows that all have a gradient in every step are stepped as a variable is.
void TestElementwise() {
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
    Look(*table, ids);
    for (int step = 1; step <= 5; ++step) {
      for (float& g : gradient) g = static_cast<float>(random() % 1000) / 500 - 1;
      StepRuns runs{gradient.data(), {value.data(), value.data()}, {}};
      for (size_t i = 0; i < slots.size(); ++i) runs.slots[i] = {slots[i].data(), slots[i].data()};
      Optimize(optimizer, {0.1, step}, 0, DType::kFloat32, value.size(), runs);
      Apply(*table, ids, gradient, {0.1, step});
    }
    const Floats rows = Look(*table, ids, false);
    for (size_t i = 0; i < rows.size(); ++i) EXPECT(std::abs(rows[i] - value[i]) <= 1e-6f);
  }
}

// As a dense variable, of which most rows have no gradient in most steps.
void TestExactAdam() {
  constexpr size_t kRows = 20;
  TableConfig config = Constant(1, 0.5);
  config.rule = RowRule::kExactAdam;
  config.optimizer = Adam();
  const auto table = Make(config);
  Ids all(kRows);
  for (size_t i = 0; i < kRows; ++i) all[i] = static_cast<int64_t>(i);
  Floats value(kRows, 0.5f), momentum(kRows, 0), velocity(kRows, 0);
  std::mt19937 random(5);
  Look(*table, all);
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
    Look(*table, ids);
    Apply(*table, ids, sparse, {0.001, step});
  }
  const Floats rows = Look(*table, all, false);
  for (size_t i = 0; i < kRows; ++i) EXPECT(std::abs(rows[i] - value[i]) <= 2e-6f);
}

void TestRowRules() {
  TableConfig config = Constant(2, 0);
  config.rule = RowRule::kRowwiseAdagrad;
  config.first_slots = {0.5};
  auto table = Make(config);
  EXPECT(table->content_floats() == 3);
  Look(*table, {1});
  Apply(*table, {1}, {3, 4});
  const float scale = 1 / std::sqrt(0.5f + 12.5f);
  const Floats row = Look(*table, {1}, false);
  EXPECT(std::abs(row[0] + 3 * scale) < 1e-6f && std::abs(row[1] + 4 * scale) < 1e-6f);

  config = Constant(2, 0);
  config.rule = RowRule::kGroupFtrl;
  config.first_slots = {0.1, 0};
  config.group_penalty = 4 / std::sqrt(2.0);
  table = Make(config);
  Look(*table, {1, 2});
  Apply(*table, {1, 2}, {3, 2, 6, 8});
  const Floats rows = Look(*table, {1, 2}, false);
  // The first is shorter than the penalty; the second keeps 1 - 4 / 10 of its length.
  EXPECT(rows[0] == 0 && rows[1] == 0);
  EXPECT(std::abs(rows[2] + 0.6f * 6 / std::sqrt(36.1f)) < 1e-6f);
  EXPECT(std::abs(rows[3] + 0.6f * 8 / std::sqrt(64.1f)) < 1e-6f);
}

void TestAdmission() {
  TableConfig config = Constant(1, 2);
  config.min_count = 3;
  auto table = Make(config);
  for (int i = 0; i < 2; ++i) EXPECT(Look(*table, {1}) == Floats({2}));
  Look(*table, {1}, false);  // is not seen
  Apply(*table, {1}, {1});
  EXPECT(table->stats().rows == 0 && table->stats().lost_updates == 1);
  EXPECT(Look(*table, {1, 5}) == Floats({2, 2}));
  EXPECT(table->stats().rows == 1);
  Apply(*table, {1, 5}, {1, 1});
  EXPECT(Look(*table, {1, 5}, false) == Floats({1, 2}));

  config = Constant(1, 2);
  config.probability = 0.25;
  table = Make(config);
  Ids ids(10000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  Look(*table, ids);
  EXPECT(table->stats().rows > 2200 && table->stats().rows < 2800);
}

void TestRoom() {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kLfu}) {
    TableConfig config = Constant(1, 0);
    config.max_rows = 1600;
    config.policy = policy;
    const auto table = Make(config);
    // A hundred ids are always in use; thousands of others come once.
    Ids hot(100);
    for (size_t i = 0; i < hot.size(); ++i) hot[i] = static_cast<int64_t>(i);
    Apply(*table, hot, Floats(hot.size(), -1));
    int64_t next = 1000;
    for (int round = 1; round <= 200; ++round) {
      Look(*table, hot, true, round);
      Ids cold(50);
      for (int64_t& id : cold) id = next++;
      Look(*table, cold, true, round + 0.5);
    }
    const TableStats stats = table->stats();
    EXPECT(stats.rows <= 1600 && stats.rows > 1400);
    EXPECT(stats.created - stats.evicted_for_room == stats.rows);
    const Floats rows = Look(*table, hot, false);
    EXPECT(std::count(rows.begin(), rows.end(), 1.0f) >= 98);
  }
}

void TestSweep() {
  TableConfig config = Constant(2, 3);
  config.ttl_seconds = 10;
  config.min_norm = 1;
  const auto table = Make(config);
  Look(*table, {1, 2}, true, 100);
  Look(*table, {3, 4}, true, 105);
  Apply(*table, {4}, {2.5, 2.5});
  table->Sweep(111);
  EXPECT(table->stats().rows == 1);
  EXPECT(table->stats().evicted_by_age == 2 && table->stats().evicted_by_norm == 1);
  EXPECT(Look(*table, {3, 4}, false) == Floats({3, 3, 3, 3}));
  table->Sweep(114);
  EXPECT(table->stats().rows == 1);
}

void Main() {
  TestLookupAndSgd();
  TestConfigurations();
  TestElementwise();
  TestExactAdam();
  TestRowRules();
  TestAdmission();
  TestRoom();
  TestSweep();
  std::puts("ps table: ok");
}

REGISTER_TEST(ps_table, Main);

}  // namespace
}  // namespace tfdist::testing::ps_table_test
