// A server with a memory budget: requests that it refuses, and requests that it still serves.
#include "core/base/memory_budget.h"

#include "core/ps/table/table_batch.h"
#include "ps/raw_ps_worker.h"
#include "ps/tables.h"
#include "ps/worker.h"

namespace tfdist::testing::ps_server_memory_budget_test {
namespace {

constexpr uint64_t kMegabyte = 1 << 20;
constexpr uint64_t kBudget = 32 * kMegabyte;
constexpr uint32_t kWidth = 64;

template <typename Do>
bool IsRefused(const Do& act) {
  try {
    act();
    return false;
  } catch (const ps::OverBudget&) {
    return true;
  }
}

TEST_CASE("budget") {
  ps::MemoryBudget budget(800);
  budget.Take(600, ps::MemoryUse::kPersistent);
  // An eighth is left to transient memory.
  CHECK(budget.HasRoom(100, ps::MemoryUse::kPersistent));
  CHECK(IsRefused([&] { budget.Take(101, ps::MemoryUse::kPersistent); }));
  CHECK(IsRefused([&] { budget.Check(101, ps::MemoryUse::kPersistent); }));
  CHECK(budget.held() == 600);
  budget.Take(200, ps::MemoryUse::kTransient);
  CHECK(IsRefused([&] { budget.Take(1, ps::MemoryUse::kTransient); }));
  CHECK(IsRefused([&] { budget.Take(UINT64_MAX, ps::MemoryUse::kTransient); }));
  budget.Add(50, ps::MemoryUse::kTransient);  // counted, though it cannot be refused
  CHECK(budget.held() == 850);
  budget.Remove(50, ps::MemoryUse::kTransient);
  // Unused memory is reclaimed before anything is refused.
  int reclaimed = 0;
  budget.SetReclaim([&] {
    if (reclaimed++ == 0) budget.Remove(200, ps::MemoryUse::kTransient);
  });
  budget.Take(150, ps::MemoryUse::kTransient);
  CHECK((reclaimed == 1 && budget.held() == 750));
  // The peak of requests' needs is left to them, up to half of the budget.
  ps::MemoryBudget busy(800);
  busy.Take(100, ps::MemoryUse::kPersistent);
  CHECK(IsRefused([&] { busy.Admit(701); }));
  CHECK(busy.HasRoom(600, ps::MemoryUse::kPersistent));
  busy.Admit(200);
  CHECK((busy.HasRoom(500, ps::MemoryUse::kPersistent) &&
         !busy.HasRoom(501, ps::MemoryUse::kPersistent)));
  busy.Admit(700);
  CHECK((busy.HasRoom(300, ps::MemoryUse::kPersistent) &&
         !busy.HasRoom(301, ps::MemoryUse::kPersistent)));
  CHECK(busy.held() == 100);
  CHECK_CONTAINS(ps::OverBudget(3 << 20, 30 << 20, 32 << 20).text(),
                 "needs 3.0M more, while 30.0M of its memory budget of 32.0M");

  ps::MemoryBudget unlimited(0);
  unlimited.Take(uint64_t{1} << 60, ps::MemoryUse::kPersistent);
  CHECK((unlimited.held() == uint64_t{1} << 60));
}

TEST_CASE("blocks") {
  const auto budget = std::make_shared<ps::MemoryBudget>(64 << 10);
  ps::BlockPool pool(budget);
  {
    const ps::BlockPtr block = pool.AllocateWithinBudget(40 << 10);
    CHECK(IsRefused([&] { pool.AllocateWithinBudget(30 << 10); }));
    CHECK(IsRefused([&] { pool.AllocateAtLeast(30 << 10); }));
    CHECK((budget->held() == 40 << 10));
    pool.Allocate(30 << 10);  // cannot be refused
    CHECK((budget->held() == 70 << 10));
  }
  // Unused blocks of the pool are freed for others.
  CHECK((budget->held() == 70 << 10));
  CHECK(pool.AllocateWithinBudget(60 << 10) != nullptr);
  CHECK((budget->held() == 60 << 10));
}

// Tables count the memory of their rows and indexes, and return it.
TEST_CASE("table") {
  const auto budget = std::make_shared<ps::MemoryBudget>(0);
  {
    const auto table = Make(Constant(kWidth, 0), "t");
    table->ChargeTo(budget);
    const uint64_t before = budget->held();
    CHECK((before == table->counted_bytes() && before > 0));
    Ids ids(100000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
    Lookup(*table, ids);
    CHECK(budget->held() == table->counted_bytes());
    CHECK(budget->held() - before > ids.size() * kWidth * sizeof(float));
    CHECK(budget->held() - before < 2 * ids.size() * kWidth * sizeof(float));
    // Lookups of existing rows need no memory.
    const uint64_t full = budget->held();
    for (int i = 0; i < 3; ++i) Lookup(*table, ids);
    CHECK(budget->held() == full);
  }
  CHECK(budget->held() == 0);
}

// A table with max_rows needs room for one row more.
TEST_CASE("table that evicts") {
  const auto budget = std::make_shared<ps::MemoryBudget>(16 * kMegabyte);
  ps::TableConfig config = Constant(kWidth, 0);
  config.max_rows = 16 * 300;
  const auto table = Make(config, "t");
  table->ChargeTo(budget);
  const int64_t rows_used = Rounds(40) * 5000;
  for (int64_t first = 0; first < rows_used; first += 5000) {
    Ids ids(5000);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<int64_t>(i);
    Floats rows(ids.size() * kWidth);
    const auto batch = table->Prepare(ids.data(), ids.size(), ps::Table::OnMissing::kAdmit, true);
    table->Lookup(0, *batch, true, rows.data());
  }
  CHECK(table->stats().rows == config.max_rows);
}

ps::ServerOptions WithBudget(uint64_t bytes) {
  ps::ServerOptions options = AsyncJob(2);
  options.memory_budget = bytes;
  return options;
}

class Tables {
 public:
  Tables(const ps::Server& server, int rank) : worker_(rank, 2) { worker_.Connect(server); }

  int Create(const std::string& name, const ps::TableConfig& config) {
    const int table = worker_.client().tables().Add(name, config);
    REQUIRE_OK(Call([&](ps::Done done) { worker_.client().tables().Create(table, done); }));
    return table;
  }
  Status Lookup(int table, int64_t first, size_t count, bool training = true) {
    Ids ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = first + static_cast<int64_t>(i);
    const ps::Memory rows = Hold(Floats(count * kWidth));
    return Call([&](ps::Done done) {
      worker_.client().tables().Lookup({{table, std::move(ids), rows}}, training, done);
    });
  }
  Status Push(int table, int64_t first, size_t count) {
    Ids ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = first + static_cast<int64_t>(i);
    CHECK_OK(worker_.Pull({}));
    worker_.client().parameters().StageRows(
        {1, 1}, {table, std::move(ids), Hold(Floats(count * kWidth, 1))});
    CHECK_OK(worker_.PushStaged());
    return worker_.client().Flush(kPatience);
  }
  Worker& worker() { return worker_; }

 private:
  Worker worker_;
};

TEST_CASE("rows") {
  const auto server = StartServer(WithBudget(kBudget));
  Tables first(*server, 0), second(*server, 1);
  const int table = first.Create("users", Constant(kWidth, 0));
  CHECK(second.Create("users", Constant(kWidth, 0)) == table);
  constexpr size_t kStep = 2000;
  int64_t rows = 0;
  Status refused;
  while (refused.ok()) {
    CHECK(server->tables()[0]->stats().rows == static_cast<uint64_t>(rows));
    refused = first.Lookup(table, rows, kStep);
    rows += refused.ok() ? kStep : 0;
    CHECK(rows < 1000000);
  }
  CHECK_STATUS(refused, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(refused.message(), "parameter server 0, asked by worker 0: out of memory");
  CHECK_CONTAINS(refused.message(), "a lookup in table 'users' needs ");
  CHECK_CONTAINS(refused.message(), " of its memory budget of 32.0M (TFDIST_PS_MEMORY)");
  CHECK(server->stats().memory_budget == kBudget);
  // The budget is nearly used up and never exceeded; refused requests had no effect.
  CHECK(server->stats().memory_held <= kBudget);
  CHECK(rows * kWidth * sizeof(float) > kBudget / 2);
  ps::Table& users = *server->tables()[0];
  CHECK(users.stats().rows == static_cast<uint64_t>(rows));
  // A batch with one new row among many is refused as a whole, once no row fits.
  Ids spare;
  for (int64_t id = 10 * rows; first.Lookup(table, id, 1).ok(); ++id) spare.push_back(id);
  const uint64_t full = users.stats().rows;
  CHECK(full == rows + spare.size());
  // Existing rows are served in training and outside of it, and are trained.
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(first.Lookup(table, 0, kStep));
    CHECK_OK(second.Lookup(table, 0, kStep));
    CHECK_OK(second.Push(table, 0, kStep));
  }
  CHECK_OK(second.Lookup(table, 5 * rows, kStep, /*training=*/false));
  CHECK((ValueOf(users, 0) == -3 && users.stats().rows == full));
  // A push with gradients of missing rows would create them: it is refused, and applied to no row.
  const Status pushed = second.Push(table, rows - 100, kStep);
  CHECK_STATUS(pushed, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(pushed.message(), "asked by worker 1: out of memory: a push to table 'users' ");
  CHECK((ValueOf(users, rows - 1) == 0 && users.stats().rows == full));
  // A new table needs memory as well.
  ps::TableConfig counting = Constant(kWidth, 0);
  counting.min_count = 2;
  const int more = first.worker().client().tables().Add("items", counting);
  const Status made = Call([&](ps::Done d) { first.worker().client().tables().Create(more, d); });
  CHECK_STATUS(made, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(made.message(), "the creation of table 'items' needs 8.1M more");
  CHECK(server->tables().size() == 1);
}

// Ids that are only counted need no row: they are looked up although the table is full.
TEST_CASE("rows that are not admitted") {
  const auto server = StartServer(WithBudget(kBudget));
  Tables worker(*server, 0);
  ps::TableConfig config = Constant(kWidth, 0);
  config.min_count = 3;
  const int table = worker.Create("t", config);
  int64_t rows = 0;
  Status status;
  for (; status.ok(); rows += 1000) {
    for (int i = 0; i < 3 && status.ok(); ++i) status = worker.Lookup(table, rows, 1000);
  }
  CHECK_STATUS(status, StatusCode::kResourceExhausted);
  CHECK_OK(worker.Lookup(table, 10 * rows, 1000));
  CHECK_OK(worker.Lookup(table, 10 * rows, 1000));
  CHECK_STATUS(worker.Lookup(table, 10 * rows, 1000), StatusCode::kResourceExhausted);
}

void TestVariables(bool local) {
  const auto server = StartServer(WithBudget(kBudget));
  RawPsWorker raw(*server, 1);
  Worker worker(0, 2, 1, kPatience, 0, local);
  worker.Connect(*server);
  const int small = worker.Make("small", Filled(2 * kMegabyte / sizeof(float), 1.0f));
  REQUIRE_OK(worker.BindSgd({small}));
  const size_t count = 27 * kMegabyte / sizeof(float);
  const int large = worker.Add("large", {count});
  const Status refused = worker.Create(large, Filled(count, 1.0f));
  CHECK_STATUS(refused, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(refused.message(),
                 "asked by worker 0: out of memory: the creation of variable "
                 "'large' needs 27.0M more, while 2.");
  CHECK((server->stats().shards == 1 && server->stats().value_bytes == 2 * kMegabyte));
  // A message that claims a large payload is refused before the payload arrives; the connection
  // stays in step.
  const std::string name = "claimed";
  const std::string meta = Encode(CreateRequest{{{name, DType::kFloat32, count, true}}});
  const RawAnswer answer = raw.Try(MessageType::kCreate, meta, std::string(count * 4, 'x'));
  CHECK_STATUS(answer.status, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(answer.status.message(), "'claimed'");
  CHECK(server->stats().memory_held < 4 * kMegabyte);
  // Transient memory may not exceed the rest of the budget either.
  const RawAnswer sum =
      raw.Try(MessageType::kReduce, Encode(ReduceRequest{1, 1, {DType::kFloat32}, {8 * kMegabyte}}),
              std::string(32 * kMegabyte, '\0'));
  CHECK_STATUS(sum.status, StatusCode::kResourceExhausted);
  CHECK_CONTAINS(sum.status.message(), "out of memory: a reduction with key '1' needs 32.0M");
  // Both connections still work.
  for (int i = 1; i <= 3; ++i) {
    CHECK_OK(worker.Pull({small}));
    worker.Stage(small, Filled(2 * kMegabyte / sizeof(float), 1.0f));
    CHECK_OK(worker.PushStaged());
    CHECK_OK(worker.client().Flush(kPatience));
  }
  CHECK_OK(worker.Pull({small}));
  CHECK(worker.Value(small)[7] == -2);
  CHECK(raw.Create("another", Floats{1}) == 1);
}

// A server that restores more than its budget serves the rows, and creates no more.
TEST_CASE("restored") {
  ps::ServerSnapshot image;
  image.shards.push_back(
      {"x", DType::kFloat32, 2 * kMegabyte, std::make_shared<ps::Block>(8 * kMegabyte)});
  image.tables.push_back(Make(Constant(kWidth, 1), "t"));
  Ids ids(1000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i);
  Lookup(*image.tables[0], ids);
  const auto server = StartServer(WithBudget(8 * kMegabyte), image);
  const uint64_t held = server->stats().memory_held;
  CHECK(held >= 8 * kMegabyte + image.tables[0]->counted_bytes());
  RawPsWorker raw(*server, 1);
  const RawAnswer answer = raw.Try(
      MessageType::kCreate, Encode(CreateRequest{{{"y", DType::kFloat32, 1, true}}}), "1234");
  CHECK_STATUS(answer.status, StatusCode::kResourceExhausted);
}

TEST_CASE("variables") {
  TestVariables(true);
  TestVariables(false);
}

}  // namespace
}  // namespace tfdist::testing::ps_server_memory_budget_test
